"""Sweeps: a grid of runs, from the command that starts them to the statistics over them."""
