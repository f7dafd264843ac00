from __future__ import annotations

import resource

import pytest

from trident.app.process.files import raise_file_limit


@pytest.mark.parametrize(
    ("hard", "places"), [(10_512, 10_000), (100, 64), (10**9, 100_000), (resource.RLIM_INFINITY, 100_000)]
)
def test_the_soft_limit_is_raised_and_leaves_places(hard: int, places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (50, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: raised.append(limits))
    assert raise_file_limit() == places
    assert raised == [(hard, hard)]
