"""Formatting of numbers of bytes."""

import pytest

from megatron_sspo.files.units import format_bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (999_940, "999.9 kB"),
        (999_960, "1.0 MB"),
        (31_400_000_000, "31.4 GB"),
        (2 * 10**12, "2.0 TB"),
        (10**20, "100000.0 PB"),
    ],
)
def test_units(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
