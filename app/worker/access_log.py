"""The access log: a line for each request, after its response, while it is switched on.

A line in a text format is `CLIENT "METHOD PATH" STATUS name=value ...`; in JSON each value is a field of its own. A
value that is not known is left out. The values are listed in docs/http.md.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from trident.core.http.errors import REQUEST_ID_KEY
from trident.core.http.front_end import INFERENCE_KEY, PROBE_KEY, InferenceNote
from trident.core.observability.switches import SWITCHES

_log = logging.getLogger("trident.access")

_LONGEST = 1024


def log_answered(
    client: str, environ: dict[str, Any], status: int, began_ns: int, sent: int, *, aborted: bool = False
) -> None:
    """Log a request that an application answered with a body of `sent` bytes.

    `aborted`: the client left before it had the whole response.
    """
    if PROBE_KEY in environ and not SWITCHES.probes:
        return
    length = environ.get("CONTENT_LENGTH") or ""
    fields: dict[str, object] = {
        "duration_ms": _milliseconds(began_ns),
        "received_bytes": int(length) if length.isdecimal() else 0,
        "sent_bytes": sent,
    }
    if aborted:
        fields["aborted"] = True
    if request_id := environ.get(REQUEST_ID_KEY):
        fields["request_id"] = request_id[:_LONGEST]
    note: InferenceNote | None = environ.get(INFERENCE_KEY)
    if note is not None:
        fields |= _inference(note)
    _write(client, environ["REQUEST_METHOD"], environ["RAW_URI"], status, fields)


def log_refused(client: str, received: bytes, status: int, began_ns: int, sent: int) -> None:
    """Log a request that the worker itself refused. `received` is the beginning of the request, as far as known."""
    method, path = _first_line(received)
    _write(client, method, path, status, {"duration_ms": _milliseconds(began_ns), "sent_bytes": sent})


def _milliseconds(began_ns: int) -> float:
    return round((time.perf_counter_ns() - began_ns) / 1_000_000, 3)


def _inference(note: InferenceNote) -> dict[str, object]:
    fields: dict[str, object] = {"model": note.model}
    if note.version > 0:
        fields["version"] = note.version
    if note.times is not None:
        fields |= {name.removeprefix("timing_"): value for name, value in note.times.parameters().items()}
    return fields


def _first_line(received: bytes) -> tuple[str, str]:
    """Method and target of a request that may be incomplete or no HTTP at all."""
    words = received.partition(b"\n")[0][:_LONGEST].decode("latin-1").split(maxsplit=2)
    return (words[0], words[1]) if len(words) > 1 else ("-", "-")


def _write(client: str, method: str, path: str, status: int, fields: dict[str, object]) -> None:
    text = "".join([f" {name}={_plain(value)}" for name, value in fields.items()])
    _log.info(
        '%s "%s %s" %d%s',
        client,
        method,
        path[:_LONGEST],
        status,
        text,
        extra={"client": client, "method": method, "path": path[:_LONGEST], "status": status, **fields},
    )


def _plain(value: object) -> str:
    """A value of a text line: quoted if it could be taken for more than one."""
    text = str(value)
    return json.dumps(text) if not text or any(c in text for c in ' "=') else text
