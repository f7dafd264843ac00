"""The health of the server and the readiness of a model.

The body of an unready answer tells how far the server is; Triton's is empty.
Source: docs/spec/http.md sections 3 and 11; docs/architecture.md section 7.
"""

from __future__ import annotations

from dataclasses import asdict

from core.errors import InvalidRequest, ServerStopping
from core.frontend.version_text import version_number
from core.http.front_end import HttpFrontEnd
from core.http.reply import TEXT, Environ, Reply, empty_reply, json_reply
from core.lifecycle.serving_phase import Phase, ServingPhase

_NOT_YET = 400


def live(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """200 as soon as the server is initialised, even while models load."""
    if front_end.engine.is_live():
        return empty_reply(TEXT)
    _refuse_exiting(front_end.engine.phase())
    return empty_reply(TEXT, _NOT_YET)


def ready(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """200, or 400 with the phase, the model that is loading, the numbers of loaded and of all models, and failures."""
    phase = front_end.engine.phase()
    if front_end.engine.is_ready():
        return ready_reply(phase)
    _refuse_exiting(phase)
    return json_reply(readiness(phase), _NOT_YET)


def model_ready(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    """200, or 400 if the version is loaded but cannot serve now. Raises the lookup errors of `model`."""
    # The model itself may be asked. A probe's time is short, and the threads of `run` may be busy with large bodies.
    if not front_end.bridge.run_long(front_end.engine.is_model_ready, model, version_number(version)):
        raise InvalidRequest("Model version not ready", model=model)
    return empty_reply(TEXT)


def ready_reply(phase: ServingPhase) -> Reply:
    """The 200 of a ready server. Its body is empty, as in Triton, unless the last load of a model failed: then it has
    the failures."""
    return json_reply({**readiness(phase), "phase": Phase.READY.value}) if phase.failures else empty_reply(TEXT)


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
