"""Runs the deployment command in this process, with a fixed clock and without waiting."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import NamedTuple

from deploy.vertex.__main__ import run
from tests.unit.deploy.vertex.vertex_platform import VertexPlatform

NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
WHERE = ("--project=my-project", "--location=us-central1")


class Finished(NamedTuple):
    """The result of a run; `waits` are the seconds that it would have waited."""

    status: int
    out: str
    errors: str
    waits: list[float]


def command(action: str, *arguments: str, platform: VertexPlatform | None = None) -> Finished:
    """Run `action` with `platform` in place of Google; without one no call is allowed."""
    out, errors = io.StringIO(), io.StringIO()
    waits: list[float] = []
    where = (*WHERE, *([f"--api-endpoint={platform.address}"] if platform else ["--api-endpoint=http://127.0.0.1:9"]))
    status = run([action, *where, *arguments], out, errors, now=lambda: NOW, sleep=waits.append)
    return Finished(status, out.getvalue(), errors.getvalue(), waits)
