"""Sweeps of megatron-sspo, statistics over their seeds, curves and a live page of runs, tables of evaluations.

A run is started by the command line of megatron-sspo, and read from the files in its folder: nothing here imports the
trainer.
"""
