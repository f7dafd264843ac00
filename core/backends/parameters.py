"""The values of model parameters and backend settings, which are all text. Errors have Triton's texts.

Source: docs/spec/onnxruntime-backend.md section 5.2.
"""

from __future__ import annotations

from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid

_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})


def parameters_of(config: ModelConfig) -> dict[str, str]:
    """The `parameters` of a configuration by name."""
    return {name: value.string_value for name, value in config.parameters.items()}


def field_of(parameter: str) -> str:
    """The field of a configuration that a parameter is, as in a Problem."""
    return f"parameters[{parameter}]"


def boolean(text: str, field: str = "") -> bool:
    """True for true, on and 1; False for false, off and 0; in upper or lower case. Otherwise raises ConfigInvalid."""
    lowered = text.lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    hint = "true, on, 1, false, off or 0"
    raise ConfigInvalid(f"failed to convert '{text}' to boolean", hint=hint, field=field)


def integer(text: str, field: str = "") -> int:
    """Raises ConfigInvalid if `text` is not a whole number."""
    try:
        return int(text)
    except ValueError:
        message = f"failed to convert '{text}' to integral number"
        raise ConfigInvalid(message, hint="a whole number", field=field) from None


def at_least_one(text: str, name: str, model: str) -> int:
    """The value of the parameter `name` of a model. Raises ConfigInvalid if it is no integer, or less than 1."""
    value = integer(text, field_of(name))
    if value < 1:
        raise ConfigInvalid(
            f"parameter '{name}' of model '{model}' is {value}", hint="a number of at least 1", field=field_of(name)
        )
    return value
