from __future__ import annotations

from trident.app.emulators.report import seconds, size


def test_seconds_have_their_unit() -> None:
    assert [seconds(each) for each in (0.25, 1, 2.5, 600.0)] == ["250 ms", "1 s", "2.5 s", "600 s"]


def test_sizes_have_the_largest_fitting_unit() -> None:
    sizes = (0, 100_000, 1_500_000, 10_000_000, 1 << 20, 25 << 20, 1_500_001)
    assert [size(each) for each in sizes] == [
        "0 bytes",
        "100000 bytes",
        "1.5 MB",
        "10 MB",
        "1 MiB",
        "25 MiB",
        "1500001 bytes",
    ]
