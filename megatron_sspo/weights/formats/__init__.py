"""Folders of weights on disk: safetensors of Hugging Face, and torch_dist of Megatron."""
