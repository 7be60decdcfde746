"""The endpoint that answers agents, and the rollouts that it records."""
