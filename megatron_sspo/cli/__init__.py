"""The command line: one file per command, with its arguments and its code.

A file imports heavy modules only when its command runs, so that `--help` and errors in the arguments appear at once.
"""
