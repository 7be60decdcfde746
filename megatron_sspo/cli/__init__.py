"""The command line: one file a command, with its arguments and what it does.

A file imports what it needs when its command is run, so that `--help` and a slip of the pen are answered at once.
"""
