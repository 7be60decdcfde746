"""Megatron's parameters <-> Hugging Face's names."""
