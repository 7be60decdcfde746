"""Generates responses to prompts."""
