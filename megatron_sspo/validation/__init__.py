"""Checks what a user wrote: values by the annotations of the dataclasses that hold them, and the user's own code."""
