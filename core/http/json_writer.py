"""JSON of values that a strict writer refuses or changes.

Source: docs/spec/http.md sections 1 and 5.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np


def write_lenient(value: Any) -> bytes:
    """Compact JSON with the bare words NaN and Infinity, and with strings that are not UTF-8 byte for byte, as in
    Triton."""
    text = json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogateescape")


def _plain(value: np.ndarray[Any, Any] | np.generic) -> Any:
    return value.tolist()
