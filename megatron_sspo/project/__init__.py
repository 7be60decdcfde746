"""The files of a new project, and the command that writes them."""
