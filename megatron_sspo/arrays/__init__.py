"""Read-only NumPy arrays for tokens, log-probs and routes."""
