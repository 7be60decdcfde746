"""Attention and linear attention of kinds that stock Megatron lacks, or computes for one sequence alone."""
