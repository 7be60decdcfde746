"""Formats numbers of bytes for people."""

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def format_bytes(num_bytes: float) -> str:
    """Formats a number of bytes in the unit that gives a value below 1000: 950 bytes, 1.2 MB, 31.4 GB."""
    power = 0
    while power + 1 < len(_UNITS) and abs(num_bytes) >= 999.95:  # one decimal would show this as 1000.0
        num_bytes, power = num_bytes / 1000, power + 1
    return f"{num_bytes:.1f} {_UNITS[power]}" if power else f"{num_bytes:.0f} bytes"
