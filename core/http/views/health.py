"""The health of the server and the readiness of a model.

The body of a 200 is empty, as in Triton, because scripts compare what curl prints with 200. That of an unready answer
tells how far the server is.
Source: docs/spec/http.md sections 3 and 11; docs/architecture.md section 7.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final
from urllib.parse import parse_qs

from core.errors import InvalidRequest, ServerStopping
from core.frontend.version_text import version_number
from core.http.errors import header_value
from core.http.front_end import HttpFrontEnd
from core.http.reply import TEXT, Environ, Reply, empty_reply, json_reply
from core.lifecycle.serving_phase import Phase, ServingPhase

_NOT_YET = 400
FAILURES_HEADER: Final = "Trident-Failures"
"""Of a ready server: the models whose last load failed, with the reasons."""


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
    """200, or 400 if the version is loaded but cannot serve now. Raises the lookup errors of `model`."""
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
