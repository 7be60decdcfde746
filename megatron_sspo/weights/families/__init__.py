"""One file a model family: its configuration fields and its weight rows."""
