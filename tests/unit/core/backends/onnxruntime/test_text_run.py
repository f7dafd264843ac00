from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from trident.core.backends.onnxruntime.runs import TextRun
from trident.core.inference.tensors import Array, bytes_array


class Recorder:
    """A run that gives its inputs back, and keeps them."""

    def __init__(self) -> None:
        self.feeds: list[Mapping[str, Array]] = []

    def __call__(self, names: list[str], feed: Mapping[str, Array], run_options: Any) -> list[Array]:
        self.feeds.append(feed)
        return list(feed.values())


@pytest.mark.parametrize(
    ("strings", "splits", "is_text"),
    [([b"a", b"b"], True, True), ([b"a", b"b", b"c"], True, False), ([b"a", b"b", b"c"], False, True)],
)
def test_only_very_many_strings_are_passed_in_short_steps(strings: list[bytes], splits: bool, is_text: bool) -> None:
    texts, values = Recorder(), Recorder()
    run = TextRun(texts, values, splits=splits, many=2)
    (result,) = run(["OUT"], {"IN": bytes_array(strings, (len(strings),))}, None)
    assert result.tolist() == strings
    assert (len(texts.feeds), len(values.feeds)) == (int(is_text), int(not is_text))


def test_bytes_that_are_no_text_are_passed_as_values() -> None:
    texts, values = Recorder(), Recorder()
    run = TextRun(texts, values, splits=True)
    feed = {"IN": bytes_array([b"\xff"], (1,)), "NUMBERS": np.zeros(3)}
    assert run(["OUT"], feed, None)[0].tolist() == [b"\xff"]
    assert (texts.feeds, values.feeds) == ([], [feed])
