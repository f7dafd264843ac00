"""Batch buckets: the sizes to which batches are padded, as the parameters of a configuration give them.

Source: docs/ragged-batching.md; docs/spec/model-config.md section "In Trident".
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from trident.core.config.platforms import pads_batches
from trident.core.config.problem import Problem
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import BucketSpec
from trident.core.inference.tensors import BYTES, Datatype
from trident.core.observability.latency_options import DEFAULT_BUCKETS

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


# Source: docs/spec/schedulers.md section 3.2, "A target instead of a delay".


TARGET_P99 = "TARGET_P99_MS"
_PATH = f"parameters[{TARGET_P99}]"
_LONGEST_MS = 3_600_000
_NS_PER_MS = 1_000_000


def target_p99_ns(config: ModelConfig) -> int:
    """The target of a valid configuration, 0 without one."""
    return round(_value(config) * _NS_PER_MS) if TARGET_P99 in config.parameters else 0


def latency_target_problems(config: ModelConfig, *, completed: bool) -> list[Problem]:
    """The problems of the target; with `completed` False auto-complete may still fill max_batch_size."""
    if TARGET_P99 not in config.parameters:
        return []
    name = config.name
    text = config.parameters[TARGET_P99].string_value
    problems = []
    if not 0 < _value(config) <= _LONGEST_MS:
        message = f"{TARGET_P99} must be milliseconds from above 0 to {_LONGEST_MS}, got '{text}' for {name}"
        hint = 'give the latency that one in a hundred requests may exceed, such as string_value: "20"'
        problems.append(Problem(_PATH, message, hint))
    if not config.HasField("dynamic_batching"):
        hint = "add 'dynamic_batching { }', whose delay and size the target sets, or remove the parameter"
        problems.append(Problem(_PATH, f"{TARGET_P99} needs dynamic_batching for {name}", hint))
    elif completed and config.max_batch_size < 2:
        hint = "set max_batch_size to the largest batch that fits into memory, or remove the parameter"
        problems.append(Problem(_PATH, f"{TARGET_P99} needs a max_batch_size of at least 2 for {name}", hint))
    batching = config.dynamic_batching
    for field, is_set in (
        ("max_queue_delay_microseconds", batching.max_queue_delay_microseconds > 0),
        # A completed configuration names the default.
        ("preferred_batch_size", list(batching.preferred_batch_size) not in ([], [config.max_batch_size])),
    ):
        if is_set:
            message = f"{TARGET_P99} sets what {field} sets for {name}"
            problems.append(
                Problem(f"dynamic_batching.{field}", message, f"remove one of the two: {TARGET_P99} or {field}")
            )
    if config.model_transaction_policy.decoupled:
        hint = "a decoupled model answers after its execution: give it a max_queue_delay_microseconds instead"
        problems.append(Problem(_PATH, f"{TARGET_P99} is not for the decoupled model {name}", hint))
    return problems


def _value(config: ModelConfig) -> float:
    """Not a number for what is none."""
    try:
        return float(config.parameters[TARGET_P99].string_value)
    except ValueError:
        return float("nan")


# Source: docs/spec/schedulers.md section 3.2, "When every caller waits".


WAIT_OUT = "WAIT_OUT_QUEUE_DELAY"
_VALUES = {"true": True, "1": True, "false": False, "0": False}


def waits_out_delay(config: ModelConfig) -> bool:
    """The value in a valid configuration, False without one."""
    return WAIT_OUT in config.parameters and _VALUES[_text(config)]


def queue_delay_problems(config: ModelConfig) -> list[Problem]:
    if WAIT_OUT not in config.parameters or _text(config) in _VALUES:
        return []
    text = config.parameters[WAIT_OUT].string_value
    message = f"{WAIT_OUT} must be true or false, got '{text}' for {config.name}"
    hint = 'give string_value: "true" to wait for the whole queue delay even if every open connection waits already'
    return [Problem(f"parameters[{WAIT_OUT}]", message, hint)]


def _text(config: ModelConfig) -> str:
    text: str = config.parameters[WAIT_OUT].string_value
    return text.lower()


# Source: docs/spec/model-config.md section 2.9.


def histogram_buckets(config: ModelConfig) -> dict[str, tuple[float, ...]]:
    """The bounds of every histogram of a model, ascending. The configuration is valid; unknown families are ignored."""
    buckets = dict(DEFAULT_BUCKETS)
    for control in config.model_metrics.metric_control:
        family = control.metric_identifier.family
        chosen = tuple(sorted({bound for bound in control.histogram_options.buckets if isfinite(bound)}))
        if family in buckets and chosen:
            buckets[family] = chosen
    return buckets
