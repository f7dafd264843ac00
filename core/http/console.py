"""The routes of the console: its files, the data that it polls, and the changes that a user may make.

The files are open to everyone. What the page shows belongs to the groups of the v2 protocol's own routes, so that
tokens and restricted APIs hold for it as well. Source: docs/console.md.
"""

from __future__ import annotations

import gzip
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import parse_qs

import orjson

from trident.core.errors import InvalidRequest, ModelNotFound
from trident.core.frontend.access import PAGE
from trident.core.frontend.admin import model_statistics_json, shown_settings, slowest_requests_json
from trident.core.http import admin
from trident.core.http.body import choose_encoding, read_object
from trident.core.http.errors import RouteNotFound
from trident.core.http.front_end import PROBE_KEY, HttpFrontEnd
from trident.core.http.reply import TEXT, Environ, Reply, header_of, json_reply, text_reply
from trident.core.http.routes import GET, POST, Route
from trident.core.lifecycle.state import REGISTERED, UNLOADED, ModelState, VersionOverview
from trident.core.observability.history import RECENT_SECONDS, Activity, VersionHistory
from trident.core.observability.log_ring import read_log_lines
from trident.core.observability.refusals import recent_refusals, refused_by_model
from trident.core.observability.statistics import LONG_S
from trident.core.observability.tracing.trace import TraceRecord

# --- the files

_FOLDER = Path(__file__).parent / "console" / "page"
_MIMES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SECURITY = [
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-cache"),
]
_FILES = {
    path.relative_to(_FOLDER).as_posix(): path.read_bytes() for path in _FOLDER.rglob("*") if path.suffix in _MIMES
}
_TAG = f'"{sha256(b"".join(_FILES[name] for name in sorted(_FILES))).hexdigest()[:16]}"'


def page(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    return page_file(front_end, environ, "index.html")


def page_file(front_end: HttpFrontEnd, environ: Environ, file: str) -> Reply:
    environ[PROBE_KEY] = True
    if file not in _FILES:
        raise RouteNotFound
    headers = [*_SECURITY, ("ETag", _TAG)]
    if header_of(environ, "if-none-match") == _TAG:
        return Reply(304, headers, [])
    content = _FILES[file]
    if choose_encoding(header_of(environ, "accept-encoding") or "") == "gzip":
        content = _compressed(file)
        headers += [("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")]
    return text_reply(200, content, _MIMES[Path(file).suffix], headers)


@lru_cache(maxsize=64)
def _compressed(file: str) -> bytes:
    return gzip.compress(_FILES[file], mtime=0)


def to_page(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """The links of the page are relative to its path without a slash, whatever a proxy has put before it."""
    return text_reply(302, b"", TEXT, [("Location", "../console")])


# --- the data

_MOST_ROWS = 200
_MOST_FAILED, _MOST_REFUSED = 20, 50
# The slowest model is shown if its 99th percentile is a second, or so many times the median of all.
_SLOW_US, _SLOW_TIMES = 1e6, 10


def server(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """The readiness of the server, with the reason, and whether clients may load and unload models."""
    engine = front_end.engine
    known = asdict(front_end.bridge.run(engine.server_metadata))
    said = {"is_ready": engine.is_ready(), "control_mode": front_end.options.control_mode}
    return _data(environ, {**known, **said, **admin.readiness(engine.phase())})


def models(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """A page of the versions: those that match `search` and `state`, in the order of
    `sort`, with the history of each after the second `since`.
    """
    asked = _query(environ)
    engine = front_end.engine
    now = time.time()
    lines = front_end.bridge.run(engine.overview)
    refused = refused_by_model()
    rows = [_row(line, refused) for line in lines]
    words = asked.get("search", "").lower().split()
    state = asked.get("state", "")
    matching = [
        row
        for row in rows
        if all(word in row["name"].lower() for word in words) and state in ("", row["state"] or "NONE")
    ]
    column, _, direction = asked.get("sort", "name").partition("-")
    matching.sort(key=lambda row: (row["name"], row["version"] or 0))
    if column != "name" or direction:
        matching.sort(key=_order(column), reverse=direction == "down")
    offset, limit = _number(asked, "offset"), min(_number(asked, "limit", 50), _MOST_ROWS)
    shown = matching[offset : offset + limit]
    names = sorted({row["name"] for row in shown})
    history = front_end.bridge.run(engine.history, names, _number(asked, "since")) if names else []
    active = [row for row in rows if row["requests_per_s"]]
    slowest = max(active, key=_order("p99_us"), default=None)
    if slowest is not None and slowest["p99_us"] < min(_SLOW_US, _SLOW_TIMES * median(row["p99_us"] for row in active)):
        slowest = None
    return _data(
        environ,
        {
            "now": now,
            "window_s": RECENT_SECONDS,
            "total": len(rows),
            "matching": len(matching),
            "states": Counter(row["state"] or "NONE" for row in rows),
            "requests_per_s": sum(row["requests_per_s"] for row in rows),
            "failures": sum(row["failures"] for row in rows),
            "queued": sum(row["queued"] for row in rows),
            "refused": refused.total(),
            "running": list(islice((row for row in rows if row["running_s"]), _MOST_FAILED)),
            "unloadable": list(islice(filter(_has_failed, rows), _MOST_FAILED)),
            "slowest": slowest["id"] if slowest is not None else "",
            "rows": shown,
            "history": {f"{each.name}/{each.version}": _history(each) for each in history},
        },
    )


def _row(line: VersionOverview, refused: Counter[str]) -> dict[str, Any]:
    """A version with the figures of the last minute; durations are in microseconds. `refused` counts by model, and
    `running_s` is for how long an execution has run, if that is long."""
    entry, activity = line.entry, line.activity or Activity()
    in_all = activity.request_us or 1.0
    return {
        "id": f"{entry.name}/{entry.version}",
        "name": entry.name,
        "version": entry.version,
        "state": entry.state.value if entry.state is not None else "",
        "reason": entry.reason,
        "hint": line.hint,
        "backend": line.backend,
        "device": line.device,
        "execution_provider": line.execution_provider,
        "load_seconds": line.load_seconds,
        "memory_bytes": line.memory_bytes + sum(entry.device_bytes.values()),
        "restarts": line.restarts,
        "sequences": line.sequences,
        "requests_per_s": activity.requests / RECENT_SECONDS,
        "failures": activity.failures,
        "refused": refused[entry.name],
        "queued": line.queued,
        "running_s": _running_s(line),
        "p50_us": activity.p50_us,
        "p95_us": activity.p95_us,
        "p99_us": activity.p99_us,
        "queue_share": activity.queue_us / in_all,
        "batch_size": activity.items / activity.executions if activity.executions else 0.0,
    }


def _running_s(line: VersionOverview) -> float:
    """0 unless an execution has run for long."""
    return line.oldest_execution_ns / 1e9 if line.oldest_execution_ns >= LONG_S * 1e9 else 0.0


def _has_failed(row: dict[str, Any]) -> bool:
    return row["state"] == ModelState.UNAVAILABLE.value and row["reason"] not in ("", UNLOADED, REGISTERED)


def _order(column: str) -> Callable[[dict[str, Any]], Any]:
    def value(row: dict[str, Any]) -> Any:
        if column not in row or column in ("sequences",):
            raise InvalidRequest(f"the models cannot be sorted by '{column[:64]}'")
        return row[column] or (0 if column not in ("state", "device", "backend") else "")

    return value


def _history(history: VersionHistory) -> dict[str, Any]:
    return {"seconds": history.seconds, **history.columns}


def model(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """All versions of one model, the history of each and of an ensemble's steps after the second `since`, and the
    counters of those that serve."""
    asked = _query(environ)
    name = asked.get("name", "")
    engine, run = front_end.engine, front_end.bridge.run
    lines = run(engine.overview, name)
    if not name or not lines:
        raise ModelNotFound(f"there is no model '{name}'", model=name)
    steps = list(dict.fromkeys(step for line in lines for step in line.steps))
    history = run(engine.history, [name, *steps], _number(asked, "since"))
    refused = refused_by_model()
    is_serving = any(line.entry.state is not None and line.entry.state.value == "READY" for line in lines)
    statistics = model_statistics_json(run(engine.model_statistics, name))["model_stats"] if is_serving else []
    return _data(
        environ,
        {
            "now": time.time(),
            "versions": [_row(line, refused) for line in lines],
            "steps": steps,
            "history": {f"{each.name}/{each.version}": _history(each) for each in history},
            "statistics": statistics,
        },
    )


def demand(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """Models on demand: those in memory and those that were loaded most often, and what was let go, the last first."""
    found = front_end.bridge.run(front_end.engine.demand_overview)
    if found is None:
        raise InvalidRequest("this server has no models on demand", hint="start it with --model-control-mode=demand")
    shown = asdict(found)
    shown["models"] = sorted(shown["models"], key=lambda each: (-each["cold_seconds"], each["model"]))
    shown["let_go"] = sorted(shown["let_go"], key=itemgetter("at"), reverse=True)
    return _data(environ, shown)


def requests(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """The slowest and the last failed requests of a model in the last hour, and the last refused ones."""
    name = _query(environ).get("name", "")
    found = slowest_requests_json(name, front_end.bridge.run(front_end.engine.slowest_requests, name))
    return _data(environ, {**found, "refused": _refused(name)})


def troubles(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """The last refused and the last failed requests of all models."""
    versions = front_end.bridge.run(front_end.engine.slowest_requests, "")
    failed = [
        {"model": version.name, **noted}
        for version, shown in zip(versions, slowest_requests_json("", versions)["versions"], strict=True)
        for noted in shown["failed"]
    ]
    failed.sort(key=itemgetter("ended"), reverse=True)
    return _data(environ, {"refused": _refused(""), "failed": failed[:_MOST_REFUSED]})


def _refused(model: str) -> list[dict[str, Any]]:
    return [asdict(each) for each in recent_refusals(model)[:_MOST_REFUSED]]


def configuration(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """The metadata and the configuration of a version: in force, as written, and what has no effect."""
    asked = _query(environ)
    name, version = asked.get("name", ""), int(asked["version"]) if asked.get("version", "").isdecimal() else -1
    engine, run = front_end.engine, front_end.bridge.run
    report = run(engine.config_report, name, version)
    return _data(
        environ,
        {
            "metadata": admin.model_metadata_json(run(engine.model_metadata, name, version)),
            "in_force": run(admin.model_config_json, report.in_force),
            "written": run(admin.model_config_json, report.written) if report.written is not None else None,
            "without_effect": [asdict(problem) for problem in report.without_effect],
        },
    )


def index(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """The repository index, and for how long an execution of a version has run, if that is long."""
    engine, run = front_end.engine, front_end.bridge.run
    entries = admin.repository_index_json(run(engine.repository_index, False))
    running = {(line.entry.name, str(line.entry.version)): _running_s(line) for line in run(engine.overview)}
    for entry in entries:
        if seconds := running.get((entry["name"], entry.get("version", ""))):
            entry["running_s"] = seconds
    return _data(environ, entries)


_SEVERITIES = {"VERBOSE": 0, "INFO": 1, "WARNING": 2, "ERROR": 3}
_MOST_LINES = 1000


def log(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """The lines of the log behind the position `after`, the settings of the log, and the position of the end."""
    asked = _query(environ)
    end, lines = read_log_lines(_number(asked, "after"))
    least = _SEVERITIES.get(asked.get("level", ""), 0)
    model, text = asked.get("model", ""), asked.get("text", "").lower()
    events = []
    for line in lines:
        event = log_event(line)
        if _SEVERITIES.get(event["level"], 0) < least:
            continue
        if model and event.get("model") != model and f"'{model}'" not in event["message"]:
            continue
        if text in event["message"].lower():
            events.append(event)
    return _data(environ, {"end": end, "events": events[-_MOST_LINES:], "settings": shown_settings()})


def log_event(line: bytes) -> dict[str, Any]:
    """The event of a line, whose text is the message if it is none."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        event = None
    if isinstance(event, dict) and isinstance(event.get("level"), str) and isinstance(event.get("message"), str):
        return event
    return {"level": "INFO", "message": line.decode("utf-8", "replace")}


def traces(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """The last traces, and the settings of tracing. Times are nanoseconds since the first event of a request, which was
    at `began`, in seconds since 1970."""
    engine, run = front_end.engine, front_end.bridge.run
    found = [_trace(family) for family in run(engine.recent_traces)]
    return _data(environ, {"traces": found, "settings": run(engine.trace_settings)})


def _trace(family: tuple[TraceRecord, ...]) -> list[dict[str, Any]]:
    begin = min((ns for record in family for _, ns in record.events), default=0)
    began = time.time() - (time.monotonic_ns() - begin) / 1e9
    return [
        {"began": began, **asdict(record), "events": [[name, ns - begin] for name, ns in record.events]}
        for record in family
    ]


def _data(environ: Environ, document: object) -> Reply:
    """Polled each second and therefore not in the access log."""
    environ[PROBE_KEY] = True
    reply = json_reply(document)
    reply.headers += [("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")]
    return reply


def _query(environ: Environ) -> dict[str, str]:
    """The parameters of the request; of several with one name the first counts."""
    text = environ.get("QUERY_STRING", "")
    return {name: values[0] for name, values in parse_qs(text, max_num_fields=32).items()}


def _number(asked: dict[str, str], name: str, default: int = 0) -> int:
    text = asked.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > 18:
        raise InvalidRequest(f"'{name}' must be a number from 0")
    return int(text)


# --- changes by users

CHANGE_HEADER: Final = "Trident-Console"
"""A page of another site cannot send this header without the permission of this server, which it never gives."""


def load(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    front_end.bridge.run_long(front_end.engine.load_model, _model_to_change(front_end, environ), {})
    return json_reply({})


def unload(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    front_end.bridge.run(front_end.engine.unload_model, _model_to_change(front_end, environ), False)
    return json_reply({})


def _model_to_change(front_end: HttpFrontEnd, environ: Environ) -> str:
    _refuse_other_sites(environ)
    name = read_object(environ, front_end.options.max_input_size).get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest("'name' must be the name of a model")
    return name


def change_log(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """As POST /v2/logging."""
    _refuse_other_sites(environ)
    return admin.log_settings(front_end, environ)


def change_trace(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """As POST /v2/trace/setting."""
    _refuse_other_sites(environ)
    return admin.trace_settings(front_end, environ)


def _refuse_other_sites(environ: Environ) -> None:
    if header_of(environ, CHANGE_HEADER) is None:
        raise InvalidRequest(f"the header '{CHANGE_HEADER}' is missing: only the page of the console may send this")


_STATISTICS, _REPOSITORY = "statistics", "model-repository"

CONSOLE_ROUTES: tuple[Route, ...] = (
    Route("console", ("/console",), PAGE, GET, page),
    Route("console_slash", ("/console/",), PAGE, GET, to_page),
    Route("console_file", ("/console/page/<path:file>",), PAGE, GET, page_file),
    Route("console_server", ("/console/api/server",), "metadata", GET, server),
    Route("console_models", ("/console/api/models",), _STATISTICS, GET, models),
    Route("console_model", ("/console/api/model",), _STATISTICS, GET, model),
    Route("console_troubles", ("/console/api/troubles",), _STATISTICS, GET, troubles),
    Route("console_demand", ("/console/api/demand",), _STATISTICS, GET, demand),
    Route("console_requests", ("/console/api/requests",), _STATISTICS, GET, requests),
    Route("console_configuration", ("/console/api/configuration",), "model-config", GET, configuration),
    Route("console_index", ("/console/api/index",), _REPOSITORY, GET, index),
    Route("console_log", ("/console/api/log",), "logging", GET, log),
    Route("console_traces", ("/console/api/traces",), "trace", GET, traces),
    Route("console_load", ("/console/api/load",), _REPOSITORY, POST, load),
    Route("console_unload", ("/console/api/unload",), _REPOSITORY, POST, unload),
    Route("console_change_log", ("/console/api/log/settings",), "logging", POST, change_log),
    Route("console_change_trace", ("/console/api/traces/settings",), "trace", POST, change_trace),
)
