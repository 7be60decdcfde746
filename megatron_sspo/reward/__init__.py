"""Responses -> rewards."""
