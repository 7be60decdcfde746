"""Reads numbers with their units, and converts units."""
