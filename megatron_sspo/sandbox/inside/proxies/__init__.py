"""The program's values as the tests see them: both sides of the protocol."""
