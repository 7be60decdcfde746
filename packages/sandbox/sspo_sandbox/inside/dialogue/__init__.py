"""The dialogue between the process that holds the tests and the process that holds the program: docs/sandbox.md."""
