"""Evaluation of a policy on held-out sets: answers, estimates, their files on disk, and tables."""
