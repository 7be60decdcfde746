"""The code that runs inside a sandbox. It imports only the standard library and its own modules.

The model's program runs in a process that is forked from `start.py`. All code in this folder is trusted.

start.py         the first process of a sandbox
cases.py         runs a program once for each input
cells.py         an interpreter that executes one cell after another
judge.py         the process that holds the tests; guard.py decides what the program may do there
program_side.py  the process that holds the program; program.py executes it
peer.py          sends and answers the messages between the two, through the pipe of wire.py; values.py and shared.py
                 encode values; handle.py is an object of the other process
"""
