"""Soft Sequence Policy Optimization on stock Megatron-Core and stock SGLang."""

__version__ = "0.1.0"
