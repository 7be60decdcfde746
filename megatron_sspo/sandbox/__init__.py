"""Runs model-written programs in an isolated sandbox."""
