"""Numbers of bytes as people read them."""

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def in_units(num_bytes: float) -> str:
    """A number of bytes with the unit of which there are between 1 and 1000: 0, 950 bytes, 1.2 MB, 31.4 GB."""
    power = 0
    while power + 1 < len(_UNITS) and abs(num_bytes) >= 999.95:  # which one digit would show as 1000.0
        num_bytes, power = num_bytes / 1000, power + 1
    return f"{num_bytes:.1f} {_UNITS[power]}" if power else f"{num_bytes:.0f} bytes"
