"""The output head: log-probs and entropies of the response tokens from hidden states."""
