"""A server that runs: its health, models, requests and metrics."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from trident.app.commands.doctor.report import Area, Level, Line
from trident.app.commands.server_answers import DENIED, Answer, Ask, NoAnswer, ask
from trident.app.version import VERSION

_SAMPLES = 5
_NOTED_SKEW_S = 60.0
_MOST_MODELS = 20
_OK = 200


def running_server(url: str, ask: Ask = ask) -> str:
    """`NAME VERSION` of the server at `url` that speaks Triton's protocol; "" if there is none."""
    try:
        found = ask("GET", f"{url}/v2").document
    except NoAnswer:
        return ""
    return f"{found['name']} {found['version']}" if _speaks_protocol(found) else ""


def _speaks_protocol(metadata: Any) -> bool:
    return isinstance(metadata, dict) and {"name", "version", "extensions"} <= metadata.keys()


def server_lines(url: str, metrics_port: int, ask: Ask = ask, now: Callable[[], float] = time.time) -> list[Line]:
    """The lines of one server; `url` is that of its HTTP port, whose host also has the port of the metrics."""
    url = url.rstrip("/")
    area = Area(f"Server {url}")
    try:
        about = ask("GET", f"{url}/v2")
        if about.status not in DENIED and not _speaks_protocol(about.document):
            text = f"{url}/v2 is not answered as Triton's protocol has it ({about.refusal})"
            return [area.failed("protocol", text, "give the address of the HTTP port, which is 8000 by default")]
        answers = [ask("GET", f"{url}/v2/health/live") for _ in range(_SAMPLES)]
        lines = [_live_line(area, answers), _ready_line(area, ask("GET", f"{url}/v2/health/ready?verbose"))]
        lines += [_version_line(area, about), _clock_line(area, answers[-1], now())]
        index, counts = ask("POST", f"{url}/v2/repository/index"), ask("GET", f"{url}/v2/models/stats")
    except NoAnswer as error:
        cure = "check the address and the port, which is 8000 unless --http-port names another; is the server running?"
        return [area.failed("live", f"no answer: {error}", cure)]
    return [
        *lines,
        *_model_lines(area, index),
        *_request_lines(area, counts),
        _metrics_line(area, url, metrics_port, ask),
    ]


def _live_line(area: Area, answers: Sequence[Answer]) -> Line:
    median = statistics.median(answer.seconds for answer in answers)
    if answers[-1].status != _OK:
        return area.failed("live", answers[-1].refusal, "its log says why; this port may be another's")
    return area.ok("live", f"answers in {median * 1e3:.1f} ms, the median of {len(answers)}")


def _ready_line(area: Area, answer: Answer) -> Line:
    found = answer.document
    body = found if isinstance(found, dict) else {}
    loaded = f"{body['loaded']} of {body['total']} models loaded" if {"loaded", "total"} <= body.keys() else ""
    failures = [f"{name}: {reason}" for name, reason in dict(body.get("failures") or {}).items()]
    if answer.status == _OK:
        return area.ok("ready", loaded or "every model that the start had to load is served")
    parts = [str(body.get("phase", "")), loaded, *failures] if body.get("phase") else [answer.refusal]
    cure = (
        "wait until the models are loaded" if body.get("phase") == "loading" else "its log and the models below say why"
    )
    return area.failed("ready", "; ".join(filter(None, parts)), cure)


def _version_line(area: Area, answer: Answer) -> Line:
    found = answer.document
    if not _speaks_protocol(found):
        return area.warning("version", answer.refusal, "")
    return area.ok("version", f"{found['version']}, name '{found.get('name')}'; this command is {VERSION}")


def _clock_line(area: Area, answer: Answer, now: float) -> Line:
    try:
        skew = now - parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
    except (TypeError, ValueError):
        return area.ok("clock", "the server tells no time")
    if abs(skew) < _NOTED_SKEW_S:
        return area.ok("clock", "agrees with this machine's")
    text = f"this machine's is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's"
    return area.warning("clock", text, "synchronise both clocks: signatures and times in logs depend on them")


def _model_lines(area: Area, answer: Answer) -> Iterable[Line]:
    found = answer.document
    if answer.status != _OK or not isinstance(found, list):
        yield area.warning("models", answer.refusal, "ask with the key of the group model-repository")
        return
    ready = [entry for entry in found if entry.get("state") == "READY"]
    level = Level.OK if ready else Level.WARNING
    cure = "" if ready else "load one, or name a repository with models: trident validate REPO"
    yield area.line(level, "models", f"{len(ready)} of {len(found)} versions are ready", cure)
    # A model that was never asked for, or that was unloaded, is not at fault.
    failed = [entry for entry in found if entry.get("reason") not in (None, "", "unloaded") and entry not in ready]
    for entry in failed[:_MOST_MODELS]:
        name = f"{entry.get('name')} {entry.get('version', '')}".strip()
        yield area.warning(
            name, f"{entry.get('state') or 'not loaded'}: {entry['reason']}", "correct it and load it again"
        )


def _request_lines(area: Area, answer: Answer) -> Iterable[Line]:
    found = answer.document
    models = found.get("model_stats", []) if answer.status == _OK and isinstance(found, dict) else []
    asked = [(model, model["inference_stats"]) for model in models if model.get("inference_stats")]
    asked = [(model, stats) for model, stats in asked if stats["success"]["count"] or stats["fail"]["count"]]
    asked.sort(key=lambda pair: -pair[1]["success"]["count"])
    if answer.status == _OK and not asked:
        yield area.ok("requests", "none so far")
    for model, stats in asked[:_MOST_MODELS]:
        success, failed = stats["success"], stats["fail"]["count"]
        times = ", ".join(f"{name} {_each_ms(stats[name])}" for name in ("queue", "compute_infer") if name in stats)
        text = f"{success['count']} answered, {_each_ms(success)} each ({times}); {failed} failed"
        yield area.ok(f"{model['name']} {model['version']}", text)


def _each_ms(duration: Mapping[str, int]) -> str:
    return f"{duration['ns'] / max(1, duration['count']) / 1e6:.2f} ms"


def _metrics_line(area: Area, url: str, port: int, ask: Ask) -> Line:
    place = urlsplit(url)
    host = f"[{place.hostname}]" if ":" in (place.hostname or "") else place.hostname
    address = f"http://{host}:{port}/metrics"
    cure = "name the port with --metrics-port; --allow-metrics=false and --metrics-address close it"
    try:
        answer = ask("GET", address)
    except NoAnswer as error:
        return area.warning("metrics", f"no answer at {address}: {error}", cure)
    families = answer.body.count(b"# TYPE ")
    if answer.status != _OK or not families:
        return area.warning("metrics", f"{address} is no page of metrics: {answer.refusal}", cure)
    return area.ok("metrics", f"{families} metrics at {address}")
