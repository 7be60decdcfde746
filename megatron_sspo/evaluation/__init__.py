"""How good a policy is on held-out sets: answers, estimates, what is kept of them, and the table."""
