"""Rehearses a run: the trainer's own code as one rank of its layout, at full size, without GPUs and without the memory.

Floating-point tensors have shapes and no storage (`fake_floats.py`), and the process group connects to nobody
(`fake_world.py`). What the rank would allocate, send and compute is written into `ledger.py`.
"""
