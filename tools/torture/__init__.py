"""Runs training under a seeded sequence of faults and resumes it after each: `make torture`."""
