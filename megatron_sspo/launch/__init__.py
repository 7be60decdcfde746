"""Starts the processes of a run: locally, by Slurm or by NeMo-Run."""
