"""Execution of the program, its signals, and the pipes to the judge."""
