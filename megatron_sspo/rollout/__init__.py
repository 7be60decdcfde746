"""Prompts -> responses."""
