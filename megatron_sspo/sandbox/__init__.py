"""Runs what a model wrote where it can do no harm."""
