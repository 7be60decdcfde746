"""Conversion and comparison of folders of weights."""
