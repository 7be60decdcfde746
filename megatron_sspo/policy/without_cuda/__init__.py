"""Replacements for what Megatron-Core takes from CUDA, Apex and Transformer Engine."""
