"""Agents that ship with the package: a file for each."""
