"""The trace settings of the server and of its models, and what a model inherits.

Pure: nothing here samples or writes. Source: docs/spec/trace-and-log.md section 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from core.errors import InvalidRequest

TIMESTAMPS = "TIMESTAMPS"
TENSORS = "TENSORS"
OFF = "OFF"
LEVELS = (TIMESTAMPS, TENSORS)

# The settings that a client may change, by the names of the protocol. The level is a list of texts, the others numbers.
LEVEL = "trace_level"
RATE = "trace_rate"
COUNT = "trace_count"
FREQUENCY = "log_frequency"
CHANGEABLE = (LEVEL, RATE, COUNT, FREQUENCY)

UNLIMITED = -1

# New values by setting; None clears a setting, so that it is inherited again.
Value = int | tuple[str, ...]
Changes = Mapping[str, Value | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """What is in force for a model. `levels` is empty if nothing is traced. One of `rate` requests is sampled, 0 for
    none; `count` more at most, -1 for no limit. A file gets `frequency` traces, 0 for one file with all.
    """

    levels: tuple[str, ...] = ()
    rate: int = 1000
    count: int = UNLIMITED
    frequency: int = 0

    def changed(self, values: Mapping[str, Value]) -> TraceSettings:
        """The settings with other values, by the names of the protocol."""
        fields = {_FIELDS[name]: value for name, value in values.items()}
        return replace(self, **fields)  # type: ignore[arg-type]


_FIELDS = {LEVEL: "levels", RATE: "rate", COUNT: "count", FREQUENCY: "frequency"}


class TraceTable:
    """The settings of the server and those that models have of their own. Not thread-safe.

    A value that a model does not have is the server's, and one that the server does not have is that of the start.
    """

    def __init__(self, start: TraceSettings, *, has_destination: bool) -> None:
        """`has_destination`: traces can be written somewhere; without that nothing can be traced."""
        self._start = start
        self._has_destination = has_destination
        self._server: dict[str, Value] = {}
        self._models: dict[str, dict[str, Value]] = {}

    @property
    def models(self) -> tuple[str, ...]:
        """The models that have settings of their own."""
        return tuple(self._models)

    def of(self, model: str = "") -> TraceSettings:
        """What is in force for `model`, or for all models without settings of their own."""
        return self._merged(self._server, self._models.get(model, {}))

    def change(self, model: str, changes: Changes) -> None:
        """Change the settings of `model`, "" for the server's. Raises InvalidRequest; then nothing has changed."""
        own = dict(self._models.get(model, {}) if model else self._server)
        for name, value in changes.items():
            if value is None:
                own.pop(name, None)
            else:
                own[name] = value
        if model:
            self._check(self._merged(self._server, own))
            self._models[model] = own
            if not own:
                del self._models[model]
            return
        self._check(self._merged(own, {}))
        for values in self._models.values():
            self._check(self._merged(own, values))
        self._server = own

    def _merged(self, server: Mapping[str, Value], own: Mapping[str, Value]) -> TraceSettings:
        return self._start.changed({**server, **own})

    def _check(self, settings: TraceSettings) -> None:
        if not settings.levels:
            return
        reason, hint = "", ""
        if not settings.rate:
            reason, hint = "sample rate must be non-zero", "send a trace_rate from 1"
        elif not self._has_destination:
            reason, hint = "trace file name is not given", "start the server with --trace-config triton,file=FILE"
        if reason:
            raise InvalidRequest(f"Attempting to set invalid trace setting :{reason}", hint=hint)
