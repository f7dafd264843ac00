from __future__ import annotations

import pytest

from trident.core.scheduling.latency_target import BatchSetting
from trident.core.scheduling.limits import BatchLimits

MS = 1_000_000


def test_a_setting_is_the_limits_of_a_batch() -> None:
    assert BatchSetting(5 * MS, 12).limits() == BatchLimits(12, frozenset((12,)), 12, 5 * MS, 2 * MS)


@pytest.mark.parametrize(
    ("delay_ns", "size", "differs"),
    [
        (4 * MS, 16, False),
        (5 * MS, 16, False),
        (5 * MS + 1, 16, True),
        (3 * MS, 16, True),
        (0, 16, True),
        (4 * MS, 20, False),
        (4 * MS, 21, True),
        (4 * MS, 12, True),
    ],
)
def test_a_change_of_a_quarter_is_notable(delay_ns: int, size: int, differs: bool) -> None:
    assert BatchSetting(4 * MS, 16).differs_notably(BatchSetting(delay_ns, size)) is differs


def test_a_delay_of_some_microseconds_is_not_notable() -> None:
    assert not BatchSetting(0, 16).differs_notably(BatchSetting(200_000, 16))
