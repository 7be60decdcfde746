"""Runs programs that a model wrote in isolation, and judges them by tests."""
