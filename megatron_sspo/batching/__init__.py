"""Turns rollouts into microbatches."""
