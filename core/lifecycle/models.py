"""The models that the server knows, by name and version, and how a request finds the one that it asks for.

Source: spec/http.md section 3 (lookup texts), spec/repository.md sections 1.4 and 1.5.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from core.errors import ModelNotFound, ModelNotReady
from core.lifecycle.state import UNLOADED, ModelState
from core.lifecycle.version import ModelVersion

_UNKNOWN = "Request for unknown model: "


@dataclass(slots=True)
class ModelEntry:
    """A model by name. `problem` is why it has no versions (its configuration is wrong, its name is not unique)."""

    name: str
    problem: str = ""
    versions: dict[int, ModelVersion] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """At least one version, and each ready or unloaded on purpose (spec/repository.md section 1.5)."""
        return bool(self.versions) and all(
            v.is_ready or (v.state.current is ModelState.UNAVAILABLE and v.state.reason == UNLOADED)
            for v in self.versions.values()
        )


class Models:
    """All entries. Written by loader threads under the lock, read by every thread through `find` without one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, ModelEntry] = {}
        # What `find` reads: replaced as a whole, never changed, so that a reader needs no lock.
        self._ready: dict[tuple[str, int], ModelVersion] = {}

    def add(self, name: str, problem: str = "") -> ModelEntry:
        """The entry of `name`, made if it is new."""
        with self._lock:
            entry = self._entries.setdefault(name, ModelEntry(name))
            entry.problem = problem
            return entry

    def put(self, version: ModelVersion) -> None:
        with self._lock:
            self._entries[version.name].versions[version.version] = version

    def refresh(self) -> None:
        """Let `find` see the states as they are now: called after every move to or from READY."""
        with self._lock:
            ready: dict[tuple[str, int], ModelVersion] = {}
            for entry in self._entries.values():
                for number in sorted(entry.versions):
                    version = entry.versions[number]
                    if version.is_ready:
                        ready[entry.name, number] = ready[entry.name, -1] = version
            self._ready = ready

    def find(self, name: str, version: int) -> ModelVersion:
        """The ready version asked for, or the latest for -1. Raises ModelNotFound or ModelNotReady."""
        found = self._ready.get((name, version))
        if found is None:
            raise self._lookup_error(name, version)
        return found

    def entries(self) -> list[ModelEntry]:
        """All entries by name. A copy: safe to walk while models load."""
        with self._lock:
            return [
                ModelEntry(e.name, e.problem, dict(sorted(e.versions.items())))
                for _, e in sorted(self._entries.items())
            ]

    def versions(self) -> list[ModelVersion]:
        return [version for entry in self.entries() for version in entry.versions.values()]

    def ready_versions(self, name: str) -> list[int]:
        return sorted(number for model, number in self._ready if model == name and number != -1)

    def _lookup_error(self, name: str, version: int) -> ModelNotFound | ModelNotReady:
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or not entry.versions:
                return ModelNotFound(f"{_UNKNOWN}'{name}' is not found", hint=entry.problem if entry else None)
            if version == -1:
                return ModelNotFound(f"{_UNKNOWN}'{name}' has no available versions", hint=_reasons(entry))
            if version not in entry.versions:
                known = ", ".join(map(str, sorted(entry.versions)))
                return ModelNotFound(
                    f"{_UNKNOWN}'{name}' version {version} is not found", hint=f"the versions are: {known}"
                )
            return ModelNotReady(f"{_UNKNOWN}'{name}' version {version} is not at ready state", hint=_reasons(entry))


def _reasons(entry: ModelEntry) -> str:
    return "; ".join(
        f"version {number} is {version.state.current.value}"
        + (f": {version.state.reason}" if version.state.reason else "")
        for number, version in sorted(entry.versions.items())
    )
