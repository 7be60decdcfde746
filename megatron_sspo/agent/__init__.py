"""Agents that call the policy over HTTP."""
