"""Low-rank adapters (LoRA) of Megatron's linear layers, of experts too, in every layout."""
