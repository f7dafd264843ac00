"""Which driver a version of CUDA needs."""

from __future__ import annotations

import pytest

from trident.core.cuda import old_driver


def test_a_driver_of_an_older_cuda_is_too_old() -> None:
    assert old_driver("13.0", "535.183.01", "12.2") == (
        "driver 535.183.01 is too old for CUDA 13: it supports CUDA 12.2, and 580.65.06 or later is needed"
    )
    assert "525.60.13 or later" in old_driver("12.8", "470.256.02", "11.4")
    assert old_driver("14.0", "580.65.06", "13.0").endswith("and a newer one is needed")


@pytest.mark.parametrize(
    ("needed", "supported"),
    [("13.0", "13.0"), ("12.8", "12.2"), ("12.8", "13.1"), ("", "12.2"), ("13.0", "")],
)
def test_other_drivers_are_not(needed: str, supported: str) -> None:
    assert old_driver(needed, "580.65.06", supported) == ""
