"""The processes of a run: how they agree, how a hang is ended, and where their output goes."""
