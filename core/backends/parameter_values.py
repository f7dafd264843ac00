"""The values of model parameters and backend settings, which are all text. Errors have Triton's texts.

Source: docs/spec/onnxruntime-backend.md section 5.2.
"""

from __future__ import annotations

from core.config.schema import ModelConfig
from core.errors import ConfigInvalid

_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})


def parameters_of(config: ModelConfig) -> dict[str, str]:
    """The `parameters` of a configuration by name."""
    return {name: value.string_value for name, value in config.parameters.items()}


def boolean(text: str) -> bool:
    """True for true, on and 1; False for false, off and 0; in upper or lower case. Otherwise raises ConfigInvalid."""
    lowered = text.lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ConfigInvalid(f"failed to convert '{text}' to boolean", hint="true, on, 1, false, off or 0")


def integer(text: str) -> int:
    """Raises ConfigInvalid if `text` is not a whole number."""
    try:
        return int(text)
    except ValueError:
        raise ConfigInvalid(f"failed to convert '{text}' to integral number", hint="a whole number") from None
