"""Predicts the memory and time of a training job on one process without weights."""
