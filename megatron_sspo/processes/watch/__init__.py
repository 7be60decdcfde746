"""The watchdog: ends a run that hangs, and the other ranks of one that has failed."""
