"""NAME=VALUE pairs on the command line: labels, variables, shares."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.settings.option import BadOption

# Source: the documentation of the field `labels` of Model.
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VALUE = re.compile(r"[a-z0-9_-]{0,63}")


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping. Raises BadOption for a text without `=` and for a repeated name."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadOption.of(flag, f"it takes NAME=VALUE, not '{text}'")
        if name in found:
            raise BadOption.of(flag, f"'{name}' is given twice")
        found[name] = value
    return found


def labels(texts: Sequence[str]) -> dict[str, str]:
    """The labels that `--label` gives. Raises BadOption."""
    found = pairs(texts, "--label")
    for name, value in found.items():
        if not _KEY.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadOption.of("--label", f"a label consists of up to 63 of a-z, 0-9, - and _, unlike '{name}={value}'")
    return found
