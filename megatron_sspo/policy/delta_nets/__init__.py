"""Layers with linear attention."""
