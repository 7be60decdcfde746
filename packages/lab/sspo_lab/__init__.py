"""Sweeps of runs, their statistics, and a live page of a run."""
