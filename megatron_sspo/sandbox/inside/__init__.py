"""The programs that run inside of a sandbox. They import the standard library and one another, and no more.

The model's program runs in a process that was forked from `start.py`. Everything else here is trusted.

start.py       the first process of a sandbox
cases.py       runs a program once for each input
cells.py       an interpreter that executes one cell after another
judge.py       the process that holds the tests, and forks the program's off
subject.py     the program's side of the conversation with the judge, client.py the judge's, peer.py what they share
wire.py        messages; values.py, shared.py, errors.py, mirror.py, classes.py and special.py what is in them
operations.py  what the two sides ask of each other
verdict.py     runs the tests; flow.py, checks.py, items.py, sites.py, trees.py rewrite them
record.py      what the rewritten tests have checked; arguments.py, files.py, names.py, guard.py what they can rely on
"""
