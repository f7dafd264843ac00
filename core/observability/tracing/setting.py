"""The settings in force for some models, from one change to the next."""

from __future__ import annotations

from dataclasses import replace

from core.observability.tracing.sampler import Sampler
from core.observability.tracing.settings import LEVELS, TraceSettings


class Setting:
    """`in_flight` counts the traces that have begun and were not given to the trace thread, and `is_replaced` says that
    no others will begin: both under the tracer's lock. The trace thread keeps in `kept` the texts of traces that are
    written later, and in `collected` how many it has seen. `levels` are those of `settings` that the mode can show.
    """

    __slots__ = ("collected", "in_flight", "is_replaced", "kept", "kept_size", "levels", "sampler", "settings")

    def __init__(self, settings: TraceSettings, shows: tuple[str, ...] = LEVELS) -> None:
        """`shows` are the levels that the mode can show; without any of them nothing is sampled."""
        self.settings = settings
        self.levels = tuple(level for level in settings.levels if level in shows)
        self.sampler = Sampler(replace(settings, levels=self.levels))
        self.in_flight = 0
        self.is_replaced = False
        self.kept: list[str] = []
        self.kept_size = 0
        self.collected = 0
