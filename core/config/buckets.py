"""Batch buckets: the sizes to which batches are padded, as the parameters of a configuration give them.

Source: docs/ragged-batching.md; docs/spec/model-config.md section "In Trident".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from core.config.model_spec import BucketSpec
from core.config.platforms import pads_batches
from core.config.schema import ModelConfig
from core.inference.tensors import BYTES, Datatype

BATCH_BUCKETS = "BATCH_BUCKETS"
LENGTH_BUCKETS = "LENGTH_BUCKETS"
LENGTH_PAD_VALUES = "LENGTH_PAD_VALUES"
LENGTH_OUTPUTS = "LENGTH_OUTPUTS"

_TRUE, _FALSE = ("1", "true"), ("0", "false")


def bucket_spec(config: ModelConfig) -> BucketSpec | None:
    """The buckets of a validated configuration; None without any."""
    if not pads_batches(config):
        return None
    batch_sizes = sizes_of(parameter(config, BATCH_BUCKETS))
    lengths = sizes_of(parameter(config, LENGTH_BUCKETS))
    if not batch_sizes and not lengths:
        return None
    batch_axes = 1 if config.max_batch_size > 0 else 0
    return BucketSpec(
        batch_sizes=batch_sizes,
        lengths=lengths,
        axes={i.name: batch_axes + list(i.dims).index(-1) for i in config.input if lengths and -1 in i.dims},
        pad_values=pad_values_of(parameter(config, LENGTH_PAD_VALUES)),
        outputs=names_of(parameter(config, LENGTH_OUTPUTS)),
    )


def parameter(config: ModelConfig, name: str) -> str:
    """The text of a parameter; empty if there is none. Does not add it to `config`."""
    return str(config.parameters[name].string_value) if name in config.parameters else ""


def names_of(text: str) -> tuple[str, ...]:
    """The names in a list with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def sizes_of(text: str) -> tuple[int, ...]:
    """The sizes in a list with commas, in its order. Raises ValueError for what is not a whole number."""
    return tuple(int(size) for size in text.split(",")) if text.strip() else ()


def pad_values_of(text: str) -> dict[str, str]:
    """The values by name in a list such as `A=1, B=-1`. Raises ValueError for an entry without a name or a sign."""
    values: dict[str, str] = {}
    for entry in names_of(text):
        name, sign, value = entry.partition("=")
        if not sign or not name.strip():
            raise ValueError(f"'{entry}' is not NAME=VALUE")
        values[name.strip()] = value.strip()
    return values


def pad_value(datatype: Datatype, text: str = "") -> Any:
    """The element that `text` means in a tensor of `datatype`; without text 0, false, or the empty string.

    Raises ValueError if the datatype has no such element.
    """
    if datatype is BYTES:
        return text.encode()
    if not text:
        return datatype.dtype.type(0)
    if datatype.name == "BOOL":
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(f"'{text}' is not true or false")
        return np.bool_(text.lower() in _TRUE)
    if datatype.name == "BF16":
        # The upper half of the bits of a 32-bit number.
        return np.uint16(np.float32(float(text)).view(np.uint32) >> 16)
    if datatype.kind == "f":
        return datatype.dtype.type(float(text))
    number, limits = int(text), np.iinfo(datatype.dtype)
    if not limits.min <= number <= limits.max:
        raise ValueError(f"{number} is not between {limits.min} and {limits.max}")
    return datatype.dtype.type(number)
