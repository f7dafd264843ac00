"""The place of an engine among the engines of one server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """The engine `index` of `count`.

    The numbers that engines give out, of holds and of traces, tell a front end whom they concern: engine `index` counts
    from `index` in steps of `count`.
    """

    index: int = 0
    count: int = 1
