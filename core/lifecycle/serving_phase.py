"""How far the server is with loading its models."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from core.repository.download.progress import DownloadSnapshot


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

    @classmethod
    def of(cls, seen: DownloadSnapshot) -> DownloadPhase | None:
        """None if no download is running."""
        if not seen.active:
            return None
        return cls(
            bytes_done=seen.bytes_done,
            bytes_total=seen.bytes_total,
            objects_done=seen.objects_done,
            objects_total=seen.objects_total,
            seconds=seen.seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPhase:
    """The phase of the server, for readiness bodies and the log: `loading`, model `simple`, 3 of 7."""

    name: Phase
    model: str = ""
    done: int = 0
    total: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    download: DownloadPhase | None = None
