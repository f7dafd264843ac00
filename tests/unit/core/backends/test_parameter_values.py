"""Booleans and numbers in the text of parameters."""

from __future__ import annotations

import pytest

from trident.core.backends.parameters import boolean, integer
from trident.core.errors import ConfigInvalid


@pytest.mark.parametrize("text", ["true", "ON", "1", "True"])
def test_boolean_accepts_texts_for_true(text: str) -> None:
    assert boolean(text)


@pytest.mark.parametrize("text", ["false", "Off", "0", "FALSE"])
def test_boolean_accepts_texts_for_false(text: str) -> None:
    assert not boolean(text)


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
