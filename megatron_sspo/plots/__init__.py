"""Figures of runs and of gates."""
