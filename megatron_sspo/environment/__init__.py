"""Environments for rollouts of several turns."""
