"""How far the server is with loading its models."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Phase(Enum):
    """STARTING -> LOADING -> READY or FAILED, which say how the start ended; EXITING from any of them.

    A front end is in ENGINE_DOWN while its engine process does not run. The value is the text in readiness bodies.
    """

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    EXITING = "exiting"
    ENGINE_DOWN = "engine_down"


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadPhase:
    """The progress of the downloads that are running. `seconds` is the time since the first of them began."""

    bytes_done: int
    bytes_total: int
    objects_done: int
    objects_total: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPhase:
    """The phase of the server, for readiness bodies and the log: `loading`, model `simple`, 3 of 7."""

    name: Phase
    model: str = ""
    done: int = 0
    total: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    download: DownloadPhase | None = None
