from __future__ import annotations

import json

import pytest

from trident.core.observability.log import escaped, quoted

UNSAFE = ["\n", "\r", "\x00", "\x1b[2J", "\x7f", "\x85", "\x9b1A", "\u2028", "\u2029", "\u202e", "\u2066", "\udc80"]


@pytest.mark.parametrize("text", UNSAFE)
def test_an_escaped_text_cannot_end_a_line_or_control_a_terminal(text: str) -> None:
    for safe in (escaped(f"a{text}b"), quoted(f"a{text}b")):
        assert safe.isprintable()
        assert safe.encode()


@pytest.mark.parametrize("text", [*UNSAFE, 'say "hi"', "back\\slash", "Größe 模型", "😀", ""])
def test_a_quoted_text_is_a_json_string_of_the_text(text: str) -> None:
    assert json.loads(quoted(text)) == text


def test_other_scripts_stay_readable() -> None:
    assert quoted("Größe 模型") == '"Größe 模型"'
    assert escaped('"Größe"\t') == '"Größe"\\t'
