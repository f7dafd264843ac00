"""Values of model parameters and backend settings, which are all text. Errors have Triton's texts.

Source: docs/spec/onnxruntime-backend.md section 5.2.
"""

from __future__ import annotations

from core.errors import ConfigInvalid

_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})


def boolean(text: str) -> bool:
    """Raises ConfigInvalid for what is neither true, on, 1 nor false, off, 0, in any case of letters."""
    lowered = text.lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ConfigInvalid(f"failed to convert '{text}' to boolean", hint="true, on, 1, false, off or 0")


def integer(text: str) -> int:
    """Raises ConfigInvalid for what is no whole number."""
    try:
        return int(text)
    except ValueError:
        raise ConfigInvalid(f"failed to convert '{text}' to integral number", hint="a whole number") from None
