"""The requests that a server has refused in the last minutes, in memory that its processes share, for the console.

A request is refused when it cannot be right, asks for what does not exist, or when its caller may not send it. It has
reached no queue, so that no statistics of a model have it. Of a refusal the time, the path without its query, the
model, the status, the start of the error's text and its hint are kept, and nothing that its client sent besides.
Source: docs/console.md.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import orjson

from trident.core.errors import BackendFailed, ErrorCode, ServerError
from trident.core.observability.history import RECENT_SECONDS
from trident.core.observability.log import LineHandler
from trident.core.observability.log_ring import LogRing

LONGEST_PATH = 160
LONGEST_MODEL = 256
LONGEST_TEXT = 300
"""Characters of a refusal's path, model, and text or hint."""
KEPT_SECONDS = 60 * 60
_WITHOUT_ID = "[request id: <id_unknown>] "

_CODES = frozenset({ErrorCode.INVALID_ARG, ErrorCode.NOT_FOUND, ErrorCode.ALREADY_EXISTS, ErrorCode.UNSUPPORTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """`count` requests that were refused for one reason, the last in the second `at` since 1970. `model` is the one
    that they named, empty if that is not known, and `status` is HTTP's number or gRPC's name."""

    at: int
    path: str
    model: str
    status: str
    text: str
    hint: str
    count: int = 1


def is_refusal(error: Exception) -> bool:
    """Return whether a request that ends with `error` was refused, and not a failure of the model or the server."""
    if isinstance(error, BackendFailed) or not isinstance(error, ServerError):
        return False
    return error.code in _CODES or error.blames_client or error.before_parsing


_handler: LineHandler | None = None
_ring: LogRing | None = None


def keep_refusals() -> None:
    """Keep the refusals of this process, and of those that it forks, from now on."""
    global _handler, _ring
    if _ring is None:
        _ring = LogRing()
        _handler = LineHandler(_write, write_size=1 << 16)


def note_refusal(path: str, model: str, status: int | str, text: str, hint: str | None = None) -> None:
    """Note that a request was refused. Any thread; does not wait. Does nothing before `keep_refusals`."""
    if _handler is None:
        return
    texts = (path[:LONGEST_PATH], model[:LONGEST_MODEL], str(status), _shortened(text), _shortened(hint or ""))
    # A text may quote a client's, which need not be valid Unicode.
    line = orjson.dumps([int(time.time()), *[each.encode("utf-8", "replace").decode() for each in texts]])
    with _handler.lock:  # type: ignore[union-attr]
        _handler.enqueue(line + b"\n")


def _shortened(text: str) -> str:
    text = text.removeprefix(_WITHOUT_ID)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def _write(lines: bytes) -> None:
    """Write equal refusals of a second, which a client in a loop makes, as one line with their number."""
    assert _ring is not None
    counts = Counter(lines.splitlines())
    _ring.write(b"".join(b"%d %b\n" % (count, line) for line, count in counts.items()))


def recent_refusals(model: str = "") -> list[Refusal]:
    """The refusals of the last hour that are still known, of one model or of all, those alike as one, the last first.

    The time is that of the last one.
    """
    found: dict[tuple[str, ...], Refusal] = {}
    for each in _refusals(since=time.time() - KEPT_SECONDS):
        if model in ("", each.model):
            key = (each.path, each.model, each.status, each.text, each.hint)
            last = found.get(key)
            found[key] = each if last is None else replace(last, count=last.count + each.count)
    return list(found.values())


def _refusals(since: float) -> Iterator[Refusal]:
    """The last first."""
    if _ring is None:
        return
    for line in reversed(_ring.read(0)[1]):
        count, _, kept = line.partition(b" ")
        at, path, model, status, text, hint = orjson.loads(kept)
        if at < since:
            return
        yield Refusal(at=at, path=path, model=model, status=status, text=text, hint=hint, count=int(count))


def refused_by_model() -> Counter[str]:
    """How many requests were refused in the last minute, by model, "" for those whose model is not known."""
    found: Counter[str] = Counter()
    for refusal in _refusals(since=time.time() - RECENT_SECONDS):
        found[refusal.model] += refusal.count
    return found
