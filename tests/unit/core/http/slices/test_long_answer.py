from __future__ import annotations

import numpy as np
import orjson
import pytest

from trident.core.http.long_json import ELEMENTS, LongAnswer


def written(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


@pytest.mark.parametrize("count", [0, 1, ELEMENTS - 1, ELEMENTS, ELEMENTS + 1, 2 * ELEMENTS, 3 * ELEMENTS + 7])
def test_the_text_is_that_of_the_whole_document(count: int) -> None:
    numbers, texts = np.arange(count) / 7, np.array([f"text {i}" for i in range(count)], object)
    long = LongAnswer()
    document = {"a": [long.add(numbers, lambda part: part)], "b": long.add(texts, lambda part: part.tolist()), "c": 1}
    parts = list(long.texts(document, written))
    assert b"".join(parts) == written({"a": [numbers], "b": texts.tolist(), "c": 1})
    assert max(map(len, parts)) < 25 * ELEMENTS


def test_an_error_of_the_writer_is_raised() -> None:
    long = LongAnswer()
    document = [long.add(np.array([b"no text"], object), lambda part: part.tolist())]
    with pytest.raises(TypeError):
        list(long.texts(document, written))
