"""Serves a policy to agents over HTTP, and turns what they asked into a tree of responses."""
