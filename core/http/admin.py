"""The views of all routes but inference: health, metadata, statistics, repository, log, traces, shared memory, metrics.

Source: docs/spec/http.md sections 2, 3, 8 and 11; docs/spec/statistics-and-metrics.md section A;
docs/spec/trace-and-log.md sections 1 and 5; docs/spec/shared-memory.md sections 1, 3 and 4.
"""

from __future__ import annotations

import logging
import os
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from trident.core.engine.protocol import ConfigMessage, ModelMetadata
from trident.core.errors import InvalidRequest, ModelLoadFailed, ServerStopping
from trident.core.frontend.admin import (
    UNLOAD_PARAMETERS,
    changed_settings,
    check_allowed,
    check_handle,
    check_names,
    check_ready,
    check_region_name,
    memory_usage,
    model_statistics_json,
    refuse_repository,
    shown_settings,
    slowest_requests_json,
    wanted_changes,
)
from trident.core.frontend.request import NON_BOOLEAN, NON_STRING, NON_UNSIGNED, boolean
from trident.core.http.body import choose, read_object
from trident.core.http.errors import header_value
from trident.core.http.front_end import PROBE_KEY, HttpFrontEnd
from trident.core.http.reply import (
    JSON,
    STATUS_LINES,
    TEXT,
    Environ,
    Reply,
    empty_reply,
    json_reply,
    plain_parts,
    request_path,
    text_reply,
)
from trident.core.inference.request import version_number
from trident.core.lifecycle.state import IndexEntry, Phase, ServingPhase
from trident.core.observability.switches import SWITCHES
from trident.core.shared_memory import CudaRegion, RegionKind, SystemRegion

# --- health: the body of a 200 is empty, as in Triton, because scripts compare what curl prints with 200

_NOT_YET = 400
FAILURES_HEADER: Final = "Trident-Failures"
"""Header of a ready server: the models whose last load failed, with the reasons."""


def live(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """200 as soon as the server is initialised, even while models load."""
    if front_end.engine.is_live():
        return json_reply({"live": True}) if front_end.options.health_json else empty_reply(TEXT)
    _refuse_exiting(front_end.engine.phase())
    return empty_reply(TEXT, _NOT_YET)


def ready(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """200, or 400 with the phase, the model that is loading, the numbers of loaded and of all models, and failures."""
    if front_end.engine.is_ready():
        return ready_reply(front_end, environ)
    phase = front_end.engine.phase()
    _refuse_exiting(phase)
    return json_reply(readiness(phase), _NOT_YET)


def model_ready(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    """200, or 400 if the version is loaded but cannot serve now. Raises the lookup errors of `model`.

    With `?load=true` a model that is loaded on demand is, for whom a request of it might load it, and the answer comes
    then.
    """
    if parse_qs(environ.get("QUERY_STRING", "")).get("load") == ["true"]:
        front_end.check_access("inference", environ)
        front_end.engine.model(model, version_number(version))
    # The model itself may be asked. A probe's time is short, and the threads of `run` may be busy with large bodies.
    if not front_end.bridge.run_long(front_end.engine.is_model_ready, model, version_number(version)):
        raise InvalidRequest("Model version not ready", model=model)
    return json_reply({"name": model, "ready": True}) if front_end.options.health_json else empty_reply(TEXT)


def ready_reply(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """The 200 of a ready server. If the last load of a model failed, a header says so.

    The body is empty, or with `?verbose` what that of an unready answer is.
    """
    phase = front_end.engine.phase()
    if "verbose" in parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True):
        reply = json_reply({"ready": True, **readiness(phase), "phase": Phase.READY.value})
    elif front_end.options.health_json:
        reply = json_reply({"ready": True})
    else:
        reply = empty_reply(TEXT)
    if phase.failures:
        text = "; ".join(f"{name}: {reason}" for name, reason in phase.failures.items())
        reply.headers.append((FAILURES_HEADER, header_value(text)))
    return reply


def readiness(phase: ServingPhase) -> dict[str, object]:
    """The body of an unready answer; after the start its phase is the reason why the server is not ready."""
    name = phase.name
    if name in (Phase.READY, Phase.FAILED):
        name = Phase.LOADING if phase.model else Phase.FAILED if phase.failures else Phase.READY
    body: dict[str, object] = {"phase": name.value}
    if phase.model:
        body["model"] = phase.model
    body["loaded"] = phase.done
    body["total"] = phase.total
    if phase.download is not None:
        body["download"] = asdict(phase.download)
    if phase.failures:
        body["failures"] = phase.failures
    return body


def _refuse_exiting(phase: ServingPhase) -> None:
    if phase.name == Phase.EXITING:
        raise ServerStopping("Server exiting")


# --- metadata and statistics; the engine raises the lookup errors


def server_metadata(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    return json_reply(asdict(front_end.engine.server_metadata()))


def model_metadata(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    return json_reply(model_metadata_json(front_end.engine.model_metadata(model, version_number(version))))


def model_config(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    config = front_end.engine.model_config(model, version_number(version))
    # The first one imports protobuf, which would stop the hub.
    return json_reply(front_end.bridge.run(model_config_json, config))


def model_metadata_json(metadata: ModelMetadata) -> dict[str, Any]:
    return {**asdict(metadata), "versions": list(map(str, metadata.versions))}


def model_config_json(config: ConfigMessage) -> dict[str, Any]:
    """Plain JSON values in Triton's order, ready for a JSON encoder.

    The first call in a process imports protobuf, see `ConfigMessage.parse`: not for the hub's thread.
    """
    from trident.core.config.schema import config_json

    return config_json(config.parse())


def model_statistics(front_end: HttpFrontEnd, environ: Environ, model: str = "", version: str = "") -> Reply:
    """The statistics of one model or, without a name, of all that are ready."""
    return json_reply(model_statistics_json(front_end.engine.model_statistics(model, version_number(version))))


def slowest_requests(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    """The slowest and the last failed requests of a model in the last hour."""
    found = front_end.engine.slowest_requests(model, version_number(version))
    return json_reply(slowest_requests_json(model, found))


# --- the model repository: these access storage, so they run off the hub; the engine decides whether loading is allowed

_FILE_PREFIX = "file:"
_LINE_ENDS = b"\r\n"


def repository_index(front_end: HttpFrontEnd, environ: Environ, repository: str = "") -> Reply:
    """The known models; with `{"ready":true}` in the body only the ready ones."""
    ready = read_object(environ, front_end.options.max_input_size).get("ready", False)
    if not isinstance(ready, bool):
        raise InvalidRequest("Invalid value for 'ready': expected a boolean")
    return json_reply(repository_index_json(front_end.bridge.run(front_end.engine.repository_index, ready)))


def repository_index_json(entries: Iterable[IndexEntry]) -> list[dict[str, Any]]:
    listed = []
    for entry in entries:
        rendered: dict[str, Any] = {"name": entry.name}
        if entry.version is not None:
            rendered["version"] = str(entry.version)
        if entry.state is not None:
            rendered["state"] = entry.state.value
        if entry.reason:
            rendered["reason"] = entry.reason
        if entry.device_bytes:
            rendered["memory_usage"] = memory_usage(entry.device_bytes)
        listed.append(rendered)
    return listed


def load_model(front_end: HttpFrontEnd, environ: Environ, model: str, repository: str = "") -> Reply:
    """Load the model; answers when it serves, or with the parameter `soon` at once."""
    refuse_repository(repository)
    if "%" in model:  # it is encoded, unless a repository has a model of that name
        index = front_end.bridge.run_long(front_end.engine.repository_index, False)
        model = model if any(each.name == model for each in index) else unquote(model)
    given = _body_parameters(front_end, environ)
    if boolean("soon", given.pop("soon", False)):
        if given:
            raise InvalidRequest(f"the parameter 'soon' goes with no other, but there is '{min(given)}'")
        front_end.engine.prefetch_model(model)
        return empty_reply(JSON)
    parameters: dict[str, Any] = {}
    for key, value in given.items():
        text = _text(key, value)
        if key == "config":
            parameters[key] = text
        elif key.startswith(_FILE_PREFIX):
            try:
                # Tools break base64 into lines. Without `validate`, all other invalid characters would be skipped.
                parameters[key] = b64decode(text.encode("ascii").translate(None, _LINE_ENDS), validate=True)
            except (UnicodeEncodeError, Base64Error) as error:
                raise InvalidRequest(f"'{key}' must be a valid base64 encoded file") from error
        else:
            raise ModelLoadFailed(
                "unexpected error on creating Triton parameter",
                hint=f"'{key}' is not a parameter of a load: they are 'config' and 'file:VERSION/NAME'",
            )
    front_end.bridge.run_long(front_end.engine.load_model, model, parameters)
    return empty_reply(JSON)


def unload_model(front_end: HttpFrontEnd, environ: Environ, model: str, repository: str = "") -> Reply:
    """Unload the model; answers when unloading has begun."""
    refuse_repository(repository)
    parameters = _body_parameters(front_end, environ)
    check_names("unload parameter", parameters, UNLOAD_PARAMETERS)
    dependents = boolean("unload_dependents", parameters.get("unload_dependents", False))
    front_end.bridge.run(front_end.engine.unload_model, model, dependents)
    return empty_reply(JSON)


def _body_parameters(front_end: HttpFrontEnd, environ: Environ) -> dict[str, Any]:
    """The object under `parameters` in the body, {} without it. Raises InvalidRequest."""
    parameters = read_object(environ, front_end.options.max_input_size).get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest("attempt to get members for non-object", hint="'parameters' must be an object")
    return parameters


# --- the log and traces


def log_settings(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """The settings, after the changes in the body of a POST. A setting that is null is not changed."""
    if environ["REQUEST_METHOD"] == "POST":
        document = read_object(environ, front_end.options.max_input_size, may_be_empty=False)
        wanted = {name: value for name, value in document.items() if value is not None}
        for levels in changed_settings(wanted, _boolean, _unsigned, _text, "--"):
            front_end.bridge.run(front_end.engine.change_log, levels)
    return json_reply(shown_settings())


def trace_settings(front_end: HttpFrontEnd, environ: Environ, model: str = "") -> Reply:
    """The settings, after the changes in the body of a POST. A setting that is null is inherited again."""
    run, engine = front_end.bridge.run, front_end.engine
    if model:
        check_ready(lambda: run(engine.is_model_ready, model), model)
    if environ["REQUEST_METHOD"] == "POST":
        document = read_object(environ, front_end.options.max_input_size, may_be_empty=False)
        if document:
            changes = wanted_changes(document, lambda: run(engine.trace_settings, model), _texts, _text, "")
            run(engine.change_trace, model, changes)
    return json_reply(run(engine.trace_settings, model))


# Triton does not name a setting or field of the wrong type: the hint does.


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(NON_BOOLEAN, hint=f"'{name}' must be true or false")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(NON_STRING, hint=f"'{name}' must be a string")
    return value


def _unsigned(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise InvalidRequest(NON_UNSIGNED, hint=f"'{name}' must be a number from 0")
    return value


def _texts(name: str, value: object) -> list[str]:
    if not isinstance(value, list):
        raise InvalidRequest("attempt to access JSON non-array as array", hint=f"'{name}' must be a list")
    return [_text(name, each) for each in value]


# --- shared memory

_HANDLE = "raw_handle"
_HANDLE_TEXT = "b64"
_LONGEST_TEXT = 2**31 - 1


def memory_status(front_end: HttpFrontEnd, environ: Environ, kind: str, region: str = "") -> Reply:
    """The regions of the kind by name, or the one in the path."""
    engine = front_end.engine
    found: list[SystemRegion] | list[CudaRegion]
    found = engine.system_regions(region) if RegionKind(kind) is RegionKind.SYSTEM else engine.cuda_regions(region)
    return json_reply([asdict(each) for each in found])


def register_memory(front_end: HttpFrontEnd, environ: Environ, kind: str, region: str = "") -> Reply:
    check_allowed(allowed=front_end.options.allow_client_shm)
    check_region_name(region, kind)
    document = read_object(environ, front_end.options.max_input_size, may_be_empty=False)
    engine = front_end.engine
    if RegionKind(kind) is RegionKind.SYSTEM:
        key = _text("key", _field(document, "key"))
        offset = _unsigned("offset", document.get("offset", 0))
        engine.register_system_region(region, key, offset, _unsigned("byte_size", _field(document, "byte_size")))
    else:
        found = _field(document, _HANDLE)
        text = _text(_HANDLE_TEXT, _member(found if type(found) is dict else {}, _HANDLE_TEXT))
        byte_size, device_id = [_unsigned(name, _member(document, name)) for name in ("byte_size", "device_id")]
        if len(text) > _LONGEST_TEXT:
            raise InvalidRequest(f"'{_HANDLE}' exceeds the maximum allowed data size limit INT_MAX")
        try:
            handle = b64decode(text.encode("ascii", "ignore"))
        except Base64Error:
            handle = b""
        check_handle(handle)
        engine.register_cuda_region(region, handle, device_id, byte_size)
    return empty_reply(JSON)


def unregister_memory(front_end: HttpFrontEnd, environ: Environ, kind: str, region: str = "") -> Reply:
    """Remove the region in the path, or all of the kind."""
    check_allowed(allowed=front_end.options.allow_client_shm)
    front_end.engine.unregister_regions(RegionKind(kind), region)
    return empty_reply(JSON)


def _field(document: dict[str, Any], name: str) -> Any:
    if name not in document:
        raise InvalidRequest(f"Shared memory register request has no '{name}' field")
    return document[name]


def _member(document: dict[str, Any], name: str) -> Any:
    if name not in document:
        raise InvalidRequest(f"attempt to access non-existing object member '{name}'")
    return document[name]


# --- metrics

PROMETHEUS = "text/plain; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_TYPES = ("text/plain", "application/openmetrics-text")


class MetricsPage:
    """`render` makes the page for each request: UTF-8 text, in OpenMetrics if its argument is true.

    Without histograms it is in the Prometheus format whatever the scraper asks for. Only OpenMetrics has exemplars,
    but in it Triton's counters have no type, so it is offered where there are exemplars.
    """

    def __init__(self, render: Callable[[bool], bytes]) -> None:
        self._render = render

    def reply(self, environ: Environ) -> Reply:
        openmetrics = SWITCHES.histograms and choose(environ.get("HTTP_ACCEPT"), _TYPES) == _TYPES[1]
        return text_reply(200, self._render(openmetrics), OPENMETRICS if openmetrics else PROMETHEUS)


_PATHS = ("/metrics", "/metrics/")


class MetricsApplication:
    def __init__(self, page: MetricsPage) -> None:
        self._page = page

    def admit(self, environ: Environ) -> Reply:
        """The reply to a request with a long body, which nothing reads."""
        return self._answer(environ)

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        environ[PROBE_KEY] = True
        reply = self._answer(environ)
        start_response(STATUS_LINES[reply.status], reply.headers)
        return plain_parts(reply)

    def _answer(self, environ: Environ) -> Reply:
        if environ["REQUEST_METHOD"] != "GET":
            return text_reply(405, b'{"error":"Method Not Allowed"}', TEXT, [("Allow", "GET")])
        if request_path(environ) in _PATHS:
            return self._page.reply(environ)
        return empty_reply(TEXT)


def request_metrics_page(registry: CollectorRegistry, openmetrics: bool = False) -> bytes:
    """The counts of HTTP requests in the Prometheus text format, or as the end of a page in OpenMetrics."""
    return (generate_openmetrics if openmetrics else generate_latest)(registry)


_log = logging.getLogger("trident.http")

# The files of a process, by the kinds of its metrics, and their sizes in bytes: twice the series that there can be.
_FILES = {"counter": 1 << 18, "histogram": 1 << 16, "gauge_max": 1 << 16}


def share_request_counts(directory: Path) -> CollectorRegistry | None:
    """Count the requests of this process in `directory`, and return the sums of all processes that do.

    Each process counts in its own files, so that the counts of a dead process stay.
    Call it before the applications are made. None: the disk has no space for that, and the process counts for itself.
    Otherwise a request could not be counted, and so not answered, or the write to a mapped page would end the process.
    """
    paths = [directory / f"{kind}_{os.getpid()}.db" for kind in _FILES]
    try:
        for path, size in zip(paths, _FILES.values(), strict=True):
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        _log.warning("no disk space to count requests in %s: %s", directory, error.strerror)
        for path in paths:
            path.unlink(missing_ok=True)
        values.ValueClass = values.MutexValue
        return None
    # Applications of one process share its counts: each would write over what another has counted.
    values.ValueClass = cache(values.MultiProcessValue())  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(directory))  # type: ignore[no-untyped-call]
    return registry
