"""The code that runs inside a sandbox. It imports only the standard library and its own modules.

The model's program runs in a process that is forked from `start.py`. All code in this folder is trusted.

start.py       the first process of a sandbox
cases.py       runs a program once for each input
cells.py       an interpreter that executes one cell after another
judge.py       the process that holds the tests, and forks the program's process
common/        executes the program; `wire.py` sends messages between it and the judge
proxies/       the program's values in the judge's process: subject.py is the program's side of the protocol, client.py
               the judge's, peer.py is common to both, operations.py lists what each can request from the other;
               values.py, shared.py, errors.py, mirror.py, classes.py, special.py encode values; allowed.py
               decides what the program may do with objects of the tests
verdict/       verdict.py runs the tests; flow.py, checks.py, items.py, sites.py, trees.py rewrite them; record.py
               records what the rewritten tests check; arguments.py, names.py, guard.py keep the program from
               influencing them; unittests.py reports what unittest finds
"""
