"""Leaves out the warnings of libraries that users can do nothing about."""

import logging
import warnings


def ignore_upstream_warnings() -> None:
    """Leaves out the warnings of Megatron and torch that users can do nothing about."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")  # about optional packages
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(megatron\.core|torch\.distributed)")


def ignore_malformed_requests() -> None:
    """Leaves out the tracebacks that aiohttp's servers print for what is not HTTP; they answer it with an error."""
    logging.getLogger("aiohttp.server").addFilter(_is_not_of_a_malformed_request)


def _is_not_of_a_malformed_request(record: logging.LogRecord) -> bool:
    return not record.exc_info or type(record.exc_info[1]).__module__ != "aiohttp.http_exceptions"
