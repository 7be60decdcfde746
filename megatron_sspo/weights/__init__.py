"""Conversion between Megatron's parameters and Hugging Face's tensors."""
