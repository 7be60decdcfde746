"""The processes of a run: agreement between ranks, the watchdog that ends a hang, and standard output."""
