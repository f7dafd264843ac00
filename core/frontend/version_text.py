"""The version in a path, as a number.

Source: docs/spec/http.md section 3, "Version text errors".
"""

from __future__ import annotations

from typing import Final

from core.errors import InvalidRequest

LATEST: Final = -1
_LARGEST: Final = 2**63 - 1
_DIGITS_OF_LARGEST: Final = 19


def version_number(text: str) -> int:
    """The version that `text` names, LATEST for empty text. Raises InvalidRequest with Triton's texts."""
    if not text:
        return LATEST
    # The length is checked first: converting a very long text takes long, and a client could send many.
    significant = text.lstrip("0")
    if (
        not (text.isascii() and text.isdigit())
        or len(significant) > _DIGITS_OF_LARGEST
        or int(significant or "0") > _LARGEST
    ):
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if not significant:
        raise InvalidRequest(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return int(significant)
