from __future__ import annotations

import pytest

from trident.core.errors import InvalidRequest
from trident.core.frontend.request import LATEST, version_number


@pytest.mark.parametrize(
    ("text", "number"), [("", LATEST), ("1", 1), ("007", 7), (str(2**63 - 1), 2**63 - 1), ("0" * 5000 + "9", 9)]
)
def test_version_number_reads_versions(text: str, number: int) -> None:
    assert version_number(text) == number


@pytest.mark.parametrize("text", ["abc", "-1", "1.0", "²", str(2**63), "9" * 100_000])
def test_texts_other_than_versions_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        version_number(text)
    assert refused.value.message == (
        f"failed to get model version from specified version string '{text}' (details: stol), "
        "version should be an integral value > 0"
    )


@pytest.mark.parametrize("text", ["0", "000"])
def test_version_zero_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        version_number(text)
    assert refused.value.message == (
        f"invalid model version specified '{text}' , version should be an integral value > 0"
    )
