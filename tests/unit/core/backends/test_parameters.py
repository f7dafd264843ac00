"""Booleans and numbers in the text of parameters."""

from __future__ import annotations

import pytest

from trident.core.backends.parameters import boolean, integer
from trident.core.errors import ConfigInvalid


@pytest.mark.parametrize(
    ("text", "value"), [*dict.fromkeys(("true", "ON", "1"), True).items(), *dict.fromkeys(("Off", "0"), False).items()]
)
def test_boolean_accepts_tritons_spellings(text: str, value: bool) -> None:
    assert boolean(text) is value


@pytest.mark.parametrize("text", ["", "yes", "2"])
def test_boolean_refuses_other_texts(text: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        boolean(text)
    assert caught.value.message == f"failed to convert '{text}' to boolean"


def test_integer_accepts_whole_numbers_only() -> None:
    assert [integer(text) for text in ("0", "-1", "12")] == [0, -1, 12]
    for text in ("", "1.5", "many"):
        with pytest.raises(ConfigInvalid) as caught:
            integer(text)
        assert caught.value.message == f"failed to convert '{text}' to integral number"
