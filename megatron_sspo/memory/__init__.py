"""Estimates the memory that a run needs on each of its ranks, from config.json and the `Run` alone."""
