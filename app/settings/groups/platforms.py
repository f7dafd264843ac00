"""The settings of the platforms, whose routes are served besides or instead of the v2 protocol's port.

Source: docs/spec/server-options.md section 2 "SageMaker" and "Vertex AI".
"""

from __future__ import annotations

from dataclasses import dataclass

from adapters.sagemaker.settings import parse_port_range
from adapters.vertex.settings import KEY_FIELD, PayloadKind
from app.settings.option import option
from app.settings.option_types import BOOLEAN, FOLDER, PORT, TEXT, BadValue, Kind, choice, integer, number

NO_GROUPS = "none"
_SECTION = "Platform"
# The groups that infer or read; not those that change the server or show its configuration.
_PUBLIC = "health,metadata,inference,model-config,statistics,metrics"


def _port_range(text: str) -> str:
    try:
        parse_port_range(text)
    except ValueError as error:
        raise BadValue(f"--sagemaker-safe-port-range: {error}") from None
    return text


def _groups(text: str) -> str:
    from core.frontend.restricted_apis import GROUPS

    for group in text.split(",") if text != NO_GROUPS else ():
        if group not in (*GROUPS, "metrics"):
            known = ", ".join((*GROUPS, "metrics"))
            raise BadValue(
                f"--public-routes: '{group}' is not a group of routes; the groups are {known}; or {NO_GROUPS}"
            )
    return text


def split_groups(public_routes: str) -> tuple[str, ...]:
    """The groups in a value of --public-routes."""
    return () if public_routes == NO_GROUPS else tuple(dict.fromkeys(public_routes.split(",")))


@dataclass(frozen=True, kw_only=True, repr=False)
class PlatformSettings:
    """Part of ServerSettings. The platforms' own variables are in `ServerSettings.sagemaker` and `.vertex`."""

    platform: str = option(
        "auto",
        "platform",
        choice("platform", "auto", "plain", "sagemaker", "vertex"),
        "The platform whose container this is. auto is vertex if AIP_MODE is set, sagemaker if a SAGEMAKER_* "
        "variable is set, or if no model repository is given and one of SageMaker's directories exists; otherwise "
        "plain.",
        section=_SECTION,
        own=True,
    )
    allow_sagemaker: bool = option(
        False, "allow-sagemaker", BOOLEAN, "Whether SageMaker's port is opened.", section=_SECTION
    )
    sagemaker_port: int = option(
        8080, "sagemaker-port", PORT, "SageMaker's port, at the address of --http-address.", section=_SECTION
    )
    sagemaker_safe_port_range: str = option(
        "",
        "sagemaker-safe-port-range",
        Kind("<low>-<high>", _port_range),
        "Range in which all other ports must lie.",
        section=_SECTION,
    )
    sagemaker_thread_count: int = option(
        8,
        "sagemaker-thread-count",
        integer(1),
        "As --http-thread-count, for SageMaker's port.",
        section=_SECTION,
    )
    sagemaker_model_root: str = option(
        "/opt/ml/model",
        "sagemaker-model-root",
        FOLDER,
        "Directory into which SageMaker unpacks the model of an endpoint.",
        section=_SECTION,
        own=True,
    )
    sagemaker_models_root: str = option(
        "/opt/ml/models",
        "sagemaker-models-root",
        FOLDER,
        "Directory into which SageMaker unpacks the models of a multi-model endpoint.",
        section=_SECTION,
        own=True,
    )
    sagemaker_memory_limit_mb: int = option(
        0,
        "sagemaker-memory-limit-mb",
        integer(0),
        "Memory limit, in megabytes, of the server with the models of a multi-model endpoint, if it is lower than "
        "the container's; 0: the container's limit.",
        section=_SECTION,
        own=True,
    )
    allow_vertex_ai: bool = option(
        False, "allow-vertex-ai", BOOLEAN, "Whether Vertex AI's port is opened.", section=_SECTION
    )
    vertex_ai_port: int = option(
        8080, "vertex-ai-port", PORT, "Vertex AI's port, at the address of --http-address.", section=_SECTION
    )
    vertex_ai_thread_count: int = option(
        8, "vertex-ai-thread-count", integer(1), "As --http-thread-count, for Vertex AI's port.", section=_SECTION
    )
    vertex_ai_default_model: str = option(
        "",
        "vertex-ai-default-model",
        TEXT,
        "The model of requests to Vertex AI's predict route.",
        section=_SECTION,
        shown_default="the only model",
    )
    vertex_ai_payload: str = option(
        "auto",
        "vertex-ai-payload",
        choice("vertex-ai-payload", *PayloadKind),
        "Form of a JSON body on the predict route: instances, a request of the v2 protocol, an object for generate, or "
        "with auto the one that it looks like.",
        section=_SECTION,
        own=True,
    )
    vertex_ai_key_field: str = option(
        KEY_FIELD,
        "vertex-ai-key-field",
        TEXT,
        "Member of object instances that is not an input of the model but the key by which a batch job identifies "
        "them.",
        section=_SECTION,
        own=True,
    )
    vertex_ai_max_request_size: int = option(
        0,
        "vertex-ai-max-request-size",
        integer(0),
        "Maximum size of a request body on the predict route, in bytes; 0: only --http-max-input-size applies.",
        section=_SECTION,
        own=True,
    )
    vertex_ai_max_response_size: int = option(
        0,
        "vertex-ai-max-response-size",
        integer(0),
        "Maximum size of a response body of the predict route, in bytes; 0: no limit.",
        section=_SECTION,
        own=True,
    )
    vertex_ai_timeout_secs: float = option(
        0.0,
        "vertex-ai-timeout-secs",
        number(0),
        "Seconds after which a request to the predict route is answered with 503, and does not run if it is still "
        "queued; 0: no timeout.",
        section=_SECTION,
        own=True,
    )
    public_routes: str = option(
        _PUBLIC,
        "public-routes",
        Kind("<group>[,<group>...]", _groups),
        "Groups of the v2 protocol's routes, named as for --http-restricted-api, and metrics, that Vertex AI's port "
        "serves besides the platform's own, or none. With an invoke route prefix everyone who may call the endpoint "
        "may call them.",
        section=_SECTION,
        own=True,
    )
