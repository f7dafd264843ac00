"""`trident status` and `trident top`: what a server does, from its index and the differences of its statistics, which
any server of Triton's protocol has.

Source: docs/troubleshooting.md.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from trident.adapters.common.options import SWITCH, Option, choice, integer, number
from trident.app.process.environment import has_colours
from trident.core.observability.log import escaped
from trident.tools.ask import DEFAULT_URL, OK, Answer, Ask, NoAnswer, ask, long_executions, readiness, server_url
from trident.tools.options import read_values

# --- readings and what happened between two of them
_BUSIEST = "/console/api/models?sort=requests_per_s-down&limit=200"
_DEMAND = "/console/api/demand"
# The reason of a model that is loaded when something asks for it begins so.
_REGISTERED = "REGISTERED"
_READY = "READY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One version. Times are means of the period. `latency_ms`, `queue_share` and `batch_size` are None without a
    request, `state` and `reason` "" if the server does not tell. The percentiles and the refused requests of the model
    are those of the last minute, which a server with a console knows."""

    model: str
    version: str
    state: str = ""
    reason: str = ""
    requests: int = 0
    failures: int = 0
    latency_ms: float | None = None
    queue_share: float | None = None
    batch_size: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    refused: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """`problems` are the reasons why the server is not ready, or why a part is missing, and executions that run for
    long. `seconds` is the period that the rows cover, None for all since the start. `refused` requests are those of the
    last minute, `demand` are models on demand as the console shows them; both None if the server does not tell."""

    url: str
    ready: bool = False
    problems: tuple[str, ...] = ()
    refused: int | None = None
    seconds: float | None = None
    models: tuple[Row, ...] = ()
    demand: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The answers of the server at one time."""

    at: float
    ready: Answer
    index: Answer
    statistics: Answer
    console: Answer
    demand: Answer

    @property
    def percentiles(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """The rows of the console by model and version; empty without one."""
        return {(each["name"], str(each["version"])): each for each in self.console.found.get("rows", [])}

    @property
    def refused(self) -> int | None:
        """Requests that were refused in the last minute, those of unknown models too."""
        return self.console.found.get("refused")

    @property
    def counts(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        return {
            (each["name"], str(each.get("version", ""))): each for each in self.statistics.found.get("model_stats", [])
        }


def read(url: str, ask: Ask = ask, now: Callable[[], float] = time.monotonic) -> Reading:
    """Raises NoAnswer."""
    ready = ask("GET", f"{url}/v2/health/ready?verbose")
    index = ask("POST", f"{url}/v2/repository/index")
    statistics = ask("GET", f"{url}/v2/models/stats")
    console, demand = (ask("GET", f"{url}{path}") for path in (_BUSIEST, _DEMAND))
    return Reading(now(), ready, index, statistics, console, demand)


def overview(url: str, reading: Reading, before: Reading | None = None) -> Overview:
    """The overview of the time between both readings, or since the start of the server."""
    earlier = before.counts if before is not None else {}
    counts = reading.counts
    percentiles = reading.percentiles
    rows = {}
    found = reading.index.document if reading.index.status == OK else None
    if isinstance(found, list):
        for entry in found:
            key = (entry["name"], str(entry.get("version", "")))
            rows[key] = (entry.get("state", ""), entry.get("reason", ""))
    problems = list(_reasons(reading.ready, {model for (model, _), (_, reason) in rows.items() if reason}))
    is_elsewhere = reading.ready.status == _NOT_FOUND or reading.index.status == _NOT_ALLOWED
    if is_elsewhere:
        problems.append(ADDRESS)
    elif not isinstance(found, list):
        problems.append(f"the states of models are unknown: {reading.index.refusal}")
    if reading.statistics.status != OK and rows:
        problems.append(f"the requests are unknown: {reading.statistics.refusal}")
    problems += [f"{name} {version}: {text}" for (name, version), text in long_executions(counts.values())]
    rows = {**dict.fromkeys(counts, ("", "")), **rows}
    return Overview(
        url=url,
        ready=reading.ready.status == OK and not is_elsewhere,
        problems=tuple(problems),
        refused=reading.refused,
        seconds=None if before is None else reading.at - before.at,
        demand=reading.demand.document if reading.demand.status == OK else None,
        models=tuple(
            replace(
                _row(*key, *shown, counts.get(key, {}), earlier.get(key, {})),
                p50_ms=_ms(percentiles.get(key, {}), "p50_us"),
                p99_ms=_ms(percentiles.get(key, {}), "p99_us"),
                refused=percentiles[key].get("refused") if key in percentiles else None,
            )
            for key, shown in sorted(rows.items())
        ),
    )


def _reasons(ready: Answer, listed: Container[str]) -> Iterable[str]:
    """Why the server is not ready, and the failures of models that are not `listed` with their reasons anyway."""
    told = readiness(ready)
    if ready.status != OK:
        yield ", ".join(filter(None, (told.phase, told.loaded))) if told.phase else ready.refusal
    yield from (f"{name}: {reason}" for name, reason in told.failures.items() if name not in listed)


def _row(model: str, version: str, state: str, reason: str, now: Mapping[str, Any], before: Mapping[str, Any]) -> Row:
    stats = now.get("inference_stats") or {}
    old = before.get("inference_stats") or {}
    # A model that was loaded again counts from 0.
    if int(now.get("inference_count", 0)) < int(before.get("inference_count", 0)):
        old, before = {}, {}

    def difference(name: str, part: str) -> int:
        return int((stats.get(name) or {}).get(part, 0)) - int((old.get(name) or {}).get(part, 0))

    requests, total = difference("success", "count"), difference("success", "ns")
    executions, items = (sum(new) - sum(last) for new, last in zip(_executed(now), _executed(before), strict=True))
    return Row(
        model=model,
        version=version,
        state=state,
        reason=reason,
        requests=requests,
        failures=difference("fail", "count"),
        latency_ms=total / requests / 1e6 if requests else None,
        queue_share=difference("queue", "ns") / total if total else None,
        batch_size=items / executions if executions else None,
    )


def _executed(counts: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Executions and their items by batch size. `inference_count` has only the items of requests that succeeded."""
    sizes = counts.get("batch_stats") or ()
    executions = [int((each.get("compute_infer") or {}).get("count", 0)) for each in sizes]
    return executions, [int(each["batch_size"]) * count for each, count in zip(sizes, executions, strict=True)]


def _ms(row: Mapping[str, Any], name: str) -> float | None:
    """None for a version that has answered nothing in the last minute."""
    return row[name] / 1000 if row.get(name) else None


# --- the page

_HEADINGS = ("model", "version", "state", "requests", "failed", "latency", "in queue", "batch")
_OF_THE_CONSOLE = ("p50", "p99", "refused")
_NOT_FOUND, _NOT_ALLOWED = 404, 405  # what other ports, and other paths of this one, answer
ADDRESS = f"name the HTTP port of a server that runs, such as {DEFAULT_URL}"
_WORDS = 3  # the first columns, which begin on the left
_NARROWEST = 8
_SHOWN = 5
_SLOWEST = "  <--"
_SLOW_MS, _SLOW_TIMES = 1000.0, 10
_CLEAR, _TOP_LEFT = "\033[2J", "\033[H"
_BOLD, _PLAIN = "\033[1m", "\033[0m"
_SORTS: dict[str, Callable[[Row], Any]] = {
    "requests": lambda row: -row.requests,
    "latency": lambda row: -(row.latency_ms or 0.0),
    "queue": lambda row: -(row.queue_share or 0.0),
    "failures": lambda row: -row.failures,
    "name": lambda row: 0,
}


def page(shown: Overview, sort: str = "requests", size: os.terminal_size | None = None, *, bold: bool = False) -> str:
    """The overview as text with a line break at its end, as large as the terminal, or as is needed."""
    state = "ready" if shown.ready else "NOT READY"
    period = "since the start" if shown.seconds is None else f"in {shown.seconds:.1f} s"
    # Models that are loaded when something asks for them may be thousands: they are a number.
    models = [row for row in shown.models if not row.reason.startswith(_REGISTERED)]
    registered = len(shown.models) - len(models)
    ready = sum(row.state == _READY for row in models)
    requests, failures = (sum(getattr(row, name) for row in shown.models) for name in ("requests", "failures"))
    rate = f"{requests} requests"
    if shown.seconds is not None:
        rate = f"{requests / shown.seconds:.1f} requests/s" if shown.seconds else "-"
    known = f", {registered} registered" if registered else ""
    total = f"{ready} of {len(models)} versions ready{known}, {rate}, {failures} failed"
    refused = f"; {shown.refused} refused in the last minute" if shown.refused is not None else ""
    counts = f"; {total} {period}{refused}" if shown.ready or shown.models else ""
    head = [f"{shown.url}: {state}{counts}", *(f"  {text}" for text in shown.problems)]
    if shown.demand is not None:
        head += _demand_lines(shown.demand)
    ordered = sorted(models, key=_SORTS[sort])
    head += [f"  {row.model} {row.version}: {row.reason}" for row in ordered if row.reason not in ("", "unloaded")]
    if not ordered:
        return "\n".join(map(escaped, head)) + "\n"
    if size is not None:
        head = [line[: size.columns] for line in map(escaped, head[: max(1, size.lines // 3)])]
    room = len(ordered) if size is None else max(1, size.lines - len(head) - 3)
    slowest = _slowest(ordered)
    has_console = any(row.refused is not None for row in ordered)
    headings = (*_HEADINGS, *_OF_THE_CONSOLE) if has_console else _HEADINGS
    rows = [[escaped(cell) for cell in _cells(row, shown.seconds)][: len(headings)] for row in ordered[:room]]
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    if size is not None:
        # A long name gives way.
        spare = size.columns - sum(widths) - 2 * (len(widths) - 1) - len(_SLOWEST)
        widths[0] = min(widths[0], max(_NARROWEST, widths[0] + spare))
    lines = [*map(escaped, head), "", _line(headings, widths)]
    for row, cells in zip(ordered, rows, strict=False):
        line = _line(cells, widths) + (_SLOWEST if row is slowest else "")
        lines.append(f"{_BOLD}{line}{_PLAIN}" if bold and row is slowest else line)
    if len(ordered) > room:
        lines.append(f"... and {len(ordered) - room} more")
    return "\n".join(lines) + "\n"


def _slowest(rows: Iterable[Row]) -> Row | None:
    """The row with the highest latency, if that is a second or ten times the median: the rule of the console."""
    times = {row.latency_ms: row for row in rows if row.latency_ms}
    return times[max(times)] if times and max(times) >= min(_SLOW_MS, _SLOW_TIMES * median(times)) else None


def _demand_lines(demand: Mapping[str, Any]) -> Iterable[str]:
    """The models in memory, those whose loads the first requests waited for longest, and those let go last."""
    used, budget = (demand[name] / 1e6 for name in ("resident_bytes", "budget_bytes"))
    memory = f", {used:,.0f} of {budget:,.0f} MB" if budget else ""
    loads = f"{demand['loads']} loads in the last minute, {demand['waiting']} requests wait for one"
    yield f"  {demand['resident']} of {demand['registered']} models in memory{memory}; {loads}"
    if used > budget > 0:
        held = sorted((each for each in demand["models"] if each["is_resident"]), key=lambda each: -each["bytes"])
        names = ", ".join(f"{each['model']} {each['bytes'] / 1e6:,.1f} MB" for each in held[:_SHOWN])
        yield f"  {used - budget:,.0f} MB more than the budget, held by models in use or pinned, the largest: {names}"
    cold = [each for each in demand["models"] if each["cold_starts"]][:_SHOWN]
    if cold:
        starts = (f"{each['model']} {each['cold_starts']}, last {each['last_cold_s']:.2f} s" for each in cold)
        yield f"  cold starts: {'; '.join(starts)}"
    for each in demand["let_go"][:_SHOWN]:
        at = time.strftime("%H:%M:%S", time.localtime(each["at"]))
        yield f"  let go at {at}: {each['model']}, {each['bytes'] / 1e6:,.1f} MB, {each['text']}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    cut = [cell if len(cell) <= width else cell[: width - 1] + "~" for cell, width in zip(cells, widths, strict=True)]
    words = [cell.ljust(width) for cell, width in zip(cut[:_WORDS], widths, strict=False)]
    numbers = [cell.rjust(width) for cell, width in zip(cut[_WORDS:], widths[_WORDS:], strict=True)]
    return "  ".join([*words, *numbers])


def _cells(row: Row, seconds: float | None) -> Sequence[str]:
    count = str(row.requests) if seconds is None else f"{row.requests / seconds:.1f}/s" if seconds else "-"
    latency, p50, p99 = (
        f"{each:.2f} ms" if each is not None else "-" for each in (row.latency_ms, row.p50_ms, row.p99_ms)
    )
    share = f"{row.queue_share:.0%}" if row.queue_share is not None else "-"
    batch = f"{row.batch_size:.1f}" if row.batch_size is not None else "-"
    refused = str(row.refused) if row.refused is not None else "-"
    words = (row.model, row.version or "-", row.state or "-")
    return (*words, count, str(row.failures), latency, share, batch, p50, p99, refused)


# --- the commands

_own = Option.of_command
_SORT = _own("sort", choice("sort", *_SORTS), "requests", "The order; default requests.")
_JSON = _own("json", SWITCH, False, "Print JSON.")
_INTERVAL = _own("interval", number(0.1), 2.0, "Seconds from one page to the next; default 2.")
_COUNT = _own("count", integer(0), 0, "End after this many pages; default 0, never.")
STATUS_OPTIONS = (_JSON, _SORT)
TOP_OPTIONS = (_INTERVAL, _COUNT, _SORT)


def status(arguments: Sequence[str], ask: Ask = ask) -> int:
    """Print the overview since the start of the server. Returns 0 if the server is ready, otherwise 1.

    Raises BadOption.
    """
    values, words = read_values(STATUS_OPTIONS, arguments)
    url = server_url(words)
    shown = _now(url, None, ask)[1]
    if values[_JSON.flag]:
        sys.stdout.write(json.dumps(asdict(shown), indent=2) + "\n")
    else:
        sys.stdout.write(page(shown, values[_SORT.flag], bold=sys.stdout.isatty() and has_colours()))
    return 0 if shown.ready else 1


def top(arguments: Sequence[str], ask: Ask = ask, sleep: Callable[[float], None] = time.sleep) -> int:
    """Print the overview again and again, on a terminal in place. Returns 0, at the end or after Ctrl-C.

    Raises BadOption.
    """
    values, words = read_values(TOP_OPTIONS, arguments)
    url = server_url(words)
    on_terminal = sys.stdout.isatty()
    before: Reading | None = None
    number = 0
    try:
        while True:
            before, shown = _now(url, before, ask)
            size = shutil.get_terminal_size() if on_terminal else None
            text = page(shown, values[_SORT.flag], size, bold=on_terminal and has_colours())
            # From the top left; what is left of the page before is cleared.
            start = _TOP_LEFT if number else _CLEAR + _TOP_LEFT
            sys.stdout.write(start + text.replace("\n", "\033[K\n") + "\033[J" if on_terminal else f"{text}\n")
            sys.stdout.flush()
            number += 1
            if number == values[_COUNT.flag]:
                return 0
            sleep(values[_INTERVAL.flag])
    except KeyboardInterrupt:
        return 0


def _now(url: str, before: Reading | None, ask: Ask) -> tuple[Reading | None, Overview]:
    try:
        reading = read(url, ask)
    except NoAnswer as error:
        return None, Overview(url=url, problems=(f"no answer: {error}", ADDRESS))
    return reading, overview(url, reading, before)
