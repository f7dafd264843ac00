"""The access log: a line for each request, after its response, while it is switched on.

In a text format a line is `CLIENT "METHOD PATH" STATUS name=value ...`, and a value that could be taken for more than
one is quoted; in JSON each value is a field of its own. docs/http.md lists the values.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trident.core.inference.request import InferenceTimes

_log = logging.getLogger("trident.access")
LONGEST_LOGGED = 1024


def log_access(
    client: str,
    method: str,
    path: str,
    status: int | str,
    began_ns: int,
    sizes: Mapping[str, object],
    *,
    request_id: str = "",
    model: str = "",
    version: int = 0,
    times: InferenceTimes | None = None,
) -> None:
    """Log a request that began at `began_ns` of perf_counter_ns and has been answered. Unknown values are omitted."""
    fields: dict[str, object] = {"duration_ms": round((perf_counter_ns() - began_ns) / 1_000_000, 3), **sizes}
    if request_id:
        fields["request_id"] = request_id[:LONGEST_LOGGED]
    if model:
        fields["model"] = model
    if version > 0:
        fields["version"] = version
    if times is not None:
        fields |= {name.removeprefix("timing_"): value for name, value in times.parameters().items()}
    text = ""
    for name, field in fields.items():
        value = str(field)
        is_plain = value and not any(character in value for character in ' "=')
        text += f" {name}={value if is_plain else json.dumps(value)}"
    path = path[:LONGEST_LOGGED]
    extra = {"client": client, "method": method, "path": path, "status": status, **fields}
    _log.info('%s "%s %s" %s%s', client, method, path, status, text, extra=extra)
