"""Rollouts -> microbatches."""
