"""Runs the deployment command in this process, with a fixed clock and without waiting."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

from google.cloud import aiplatform_v1

from deploy.vertex.__main__ import run

NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
WHERE = ("--project=my-project", "--location=us-central1")
_SHOWN = re.compile(r"^\w+\.(\w+) (\{.*?\})$(?=\n\n|\n?\Z)", re.MULTILINE | re.DOTALL)


class Finished(NamedTuple):
    """The result of a run; `waits` are the seconds that it would have waited."""

    status: int
    out: str
    errors: str
    waits: list[float]


def command(action: str, *arguments: str, address: str = "http://127.0.0.1:9") -> Finished:
    """Run `action` with the server at `address` in place of Google; without one no call is answered."""
    out, errors = io.StringIO(), io.StringIO()
    waits: list[float] = []
    words = [action, *WHERE, f"--api-endpoint={address.removeprefix('http://')}", *arguments]
    status = run(words, out, errors, now=lambda: NOW, sleep=waits.append)
    return Finished(status, out.getvalue(), errors.getvalue(), waits)


def dry_run(action: str, *arguments: str) -> list[tuple[str, Any]]:
    """Each printed call: the RPC and its message."""
    found = command(action, "--dry-run", *arguments)
    assert (found.status, found.errors) == (0, "")
    return [
        (name, getattr(aiplatform_v1, f"{name}Request").from_json(text)) for name, text in _SHOWN.findall(found.out)
    ]
