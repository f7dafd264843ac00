"""The settings of the server as a whole: its name, its start, its readiness and its stop.

Source: docs/spec/server-options.md section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.settings.option import option
from app.settings.option_types import BOOLEAN, INT64_MAX, TEXT, Kind, at_least, choice, integer, number

_SECTION = "Server"
# A boolean, as in tritonserver, or auto.
_STRICTNESS = Kind(
    "auto|true|false",
    lambda text: text if text == "auto" else "true" if BOOLEAN.parse(text) else "false",
    ("auto", "true", "false"),
)


_MAX_ENGINES = 64


def _engines(text: str) -> str:
    return text if text == "auto" else str(integer(1, _MAX_ENGINES).parse(text))


@dataclass(frozen=True, kw_only=True, repr=False)
class GeneralSettings:
    """Part of ServerSettings."""

    server_id: str = option("triton", "id", TEXT, "Name of the server in its metadata.", section=_SECTION)
    exit_on_error: bool = option(
        True,
        "exit-on-error",
        BOOLEAN,
        "Whether the server exits with status 1 when a model fails to load at startup; otherwise it serves the other "
        "models.",
        section=_SECTION,
    )
    exit_timeout_secs: int = option(
        30,
        "exit-timeout-secs",
        at_least(0),
        "Seconds that requests in flight have to finish when the server stops. A negative value counts as 0.",
        section=_SECTION,
    )
    shutdown_grace_secs: float = option(
        2.0,
        "shutdown-grace-secs",
        number(0),
        "Seconds for which the server continues to answer after SIGTERM while it reports that it is not ready, so "
        "that load balancers notice before its ports close.",
        section=_SECTION,
        own=True,
    )
    engines: str = option(
        "1",
        "engines",
        Kind("<number>|auto", _engines, ("auto",)),
        "Number of processes that run the models, behind the same HTTP workers, each with its own sessions and "
        "instances; auto: chosen by the number of cores.",
        section=_SECTION,
        own=True,
    )
    pin_engines: bool = option(
        False,
        "pin-engines",
        BOOLEAN,
        "Whether each of several engines is kept on its share of the processors.",
        section=_SECTION,
        own=True,
    )
    error_hints: str = option(
        "",
        "error-hints",
        choice("error-hints", "text", "field", "off"),
        "How clients get the cure of an error, if the server knows one. text: at the end of the error's text, which is "
        "all that tritonclient shows. field: only beside it, in the body of the HTTP port, the header Trident-Hint and "
        "the metadata trident-hint, so that the text is Triton's. off: not at all.",
        section=_SECTION,
        own=True,
        shown_default="text if stdout is a terminal, otherwise field",
    )
    response_timing: bool = option(
        False,
        "response-timing",
        BOOLEAN,
        "Whether every answer carries its queue and compute times and its batch size: in the header Server-Timing, "
        "on SageMaker also in its custom attributes, and as response parameters if a request has the parameter "
        "'timing': true.",
        section=_SECTION,
        own=True,
    )
    allow_client_shm: bool = option(
        False,
        "allow-client-shm",
        BOOLEAN,
        "Whether clients may register regions of shared memory, in which inputs and outputs of their requests lie.",
        section=_SECTION,
    )
    client_shm_map_bytes: int = option(
        0,
        "client-shm-map-bytes",
        integer(0, INT64_MAX),
        "Tensors of at least so many bytes in the shared memory of clients are read and written through a map of it, "
        "which saves copies. A client that shrinks the memory while a model reads it then ends the engine. 0: never.",
        section=_SECTION,
        own=True,
    )
    strict_readiness: str = option(
        "auto",
        "strict-readiness",
        _STRICTNESS,
        "When the server is ready. auto: when every model of the start serves; a later load that fails changes "
        "nothing. true: when every version of every model is ready. false: as soon as it has started.",
        section=_SECTION,
    )
