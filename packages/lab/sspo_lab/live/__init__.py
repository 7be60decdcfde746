"""The live page of runs: a server on this machine that reads their folders, and the files of the page."""
