"""The live page of runs: a server on this machine, and a page that grows while the runs go on."""
