"""The processes of a run: agreement between ranks, the end of one that hangs, and standard output."""
