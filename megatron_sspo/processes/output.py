"""Leaves out the warnings of libraries that users can do nothing about."""

import logging
import warnings


def ignore_upstream_warnings() -> None:
    """Leaves out the warnings of Megatron and torch that users can do nothing about."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")  # about optional packages
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(megatron\.core|torch\.distributed)")
    # newer releases want another package to write checkpoints in the background
    logging.getLogger("megatron.core.dist_checkpointing").setLevel(logging.ERROR)
