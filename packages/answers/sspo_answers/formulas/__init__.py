"""Reads formulas as trees of operations, and compares them by their values."""
