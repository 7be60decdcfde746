"""Sweeps: grids of runs of megatron-sspo, statistics over their seeds, and a live page of runs.

A run is started by the command line of megatron-sspo, and read from the files in its folder: nothing here imports the
trainer.
"""
