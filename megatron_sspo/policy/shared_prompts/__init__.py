"""Rows in which a group's prompt is computed once: what Megatron's modules need in order to read them."""
