"""The access log: a line for each call, after its end, in the form of HTTP's lines.

Source: docs/http.md "The access log", docs/grpc.md.
"""

from __future__ import annotations

import json
import logging
import time

from core.grpc.counted_stream import CountedStream
from core.grpc.status import Status
from core.inference.response import InferenceResponse

_log = logging.getLogger("trident.access")

_LONGEST = 1024


def log_ended(
    client: str,
    path: str,
    status: Status,
    began_ns: int,
    stream: CountedStream,
    answer: InferenceResponse | None = None,
) -> None:
    """Log a call. `stream` has counted its bytes; `answer` is the one response of an inference, if there is one."""
    fields: dict[str, object] = {
        "duration_ms": round((time.perf_counter_ns() - began_ns) / 1_000_000, 3),
        "received_bytes": stream.received,
        "sent_bytes": stream.sent,
    }
    if answer is not None:
        if answer.id:
            fields["request_id"] = answer.id[:_LONGEST]
        fields["model"] = answer.model_name
        if answer.model_version > 0:
            fields["version"] = answer.model_version
        if answer.times is not None:
            fields |= {name.removeprefix("timing_"): value for name, value in answer.times.parameters().items()}
    text = "".join([f" {name}={_plain(value)}" for name, value in fields.items()])
    path = path[:_LONGEST]
    client = client.rpartition(":")[0] or client  # without the port, as HTTP's lines
    extra = {"client": client, "method": "gRPC", "path": path, "status": status.name, **fields}
    _log.info('%s "gRPC %s" %s%s', client, path, status.name, text, extra=extra)


def _plain(value: object) -> str:
    """A value of a text line: quoted if it could be taken for more than one."""
    text = str(value)
    return json.dumps(text) if not text or any(c in text for c in ' "=') else text
