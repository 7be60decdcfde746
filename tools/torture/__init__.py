"""A run under a seeded sequence of faults, resumed after each: `make torture`."""
