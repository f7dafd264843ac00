from __future__ import annotations

import pytest

from trident.app.commands.doctor.report import size_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1023 << 10, "1023 KiB"),
        (80 << 30, "80 GiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_a_size_has_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert size_text(count) == text
