"""StubEnvironment: what a model's process is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StubEnvironment:
    """`variables` are set beside those of the server; `interpreter` is an absolute path."""

    interpreter: str
    variables: Mapping[str, str] = field(default_factory=dict)
