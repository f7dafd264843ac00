"""Vertex AI as a platform of the registry: what shows it, its options and settings, and its application.

Source: docs/spec/vertex.md sections A1, B1.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from trident.adapters.common.options import (
    BOOLEAN,
    PORT,
    TEXT,
    BadValue,
    OptionValues,
    checked,
    choice,
    group,
    integer,
    number,
    option,
)
from trident.adapters.common.platform import Evidence, Host, Platform, PlatformTexts
from trident.adapters.vertex.settings import (
    HEALTH_ROUTE,
    KEY_FIELD,
    MODE,
    PREDICT_ROUTE,
    PREDICTION,
    PayloadKind,
    VertexSettings,
    read_routes,
    server_options,
)

if TYPE_CHECKING:
    from trident.core.http.application import V2Application

_NO_ROUTES = "none"
# The groups that infer or read; not those that change the server or show its configuration.
_PUBLIC = "health,metadata,inference,model-config,statistics,metrics"


def _check_routes(text: str) -> None:
    from trident.core.frontend.access import GROUPS

    for name in text.split(",") if text != _NO_ROUTES else ():
        if name not in (*GROUPS, "metrics"):
            known = ", ".join((*GROUPS, "metrics"))
            raise BadValue(
                f"--public-routes: '{name}' is not a group of routes; the groups are {known}; or {_NO_ROUTES}"
            )


def split_groups(public_routes: str) -> tuple[str, ...]:
    """The groups in a value of --public-routes."""
    return () if public_routes == _NO_ROUTES else tuple(dict.fromkeys(public_routes.split(",")))


# fmt: off
@group("Vertex AI")
class VertexOptions:
    """The options of the server that only Vertex AI has; its variables are in `VertexSettings`."""

    allow_vertex_ai: bool = option(False, BOOLEAN, "Open Vertex AI's port.")
    vertex_ai_port: int = option(8080, PORT, "Vertex AI's port, at the address of --http-address.")
    vertex_ai_thread_count: int = option(8, integer(1), "As --http-thread-count, for Vertex AI's port.")
    vertex_ai_default_model: str = option("", TEXT,
        "The model of requests to Vertex AI's predict route.", shown_default="the only model")
    vertex_ai_payload: str = option("auto", choice("vertex-ai-payload", *PayloadKind),
        "Meaning of a JSON body on the predict route: instances, v2, generate, or what it looks "
        "like (auto).", own=True)
    vertex_ai_key_field: str = option(KEY_FIELD, TEXT,
        "Member of instances that is a batch job's key and no input.", own=True)
    vertex_ai_max_request_size: int = option(0, integer(0),
        "Largest request body on the predict route, in bytes; 0: only --http-max-input-size.",
        own=True)
    vertex_ai_max_response_size: int = option(0, integer(0),
        "Largest response body of the predict route, in bytes; 0: no limit.", own=True)
    vertex_ai_timeout_secs: float = option(0.0, number(0),
        "Seconds until a request to the predict route gets a 503 and leaves the queue; 0: no "
        "timeout.", own=True)
    public_routes: str = option(_PUBLIC, checked("<group>[,<group>...]", _check_routes),
        "Groups of routes, named as for --http-restricted-api, and metrics, that Vertex AI's port "
        "serves beside the platform's own; or none. With an invoke route prefix all callers reach "
        "them.", own=True)
# fmt: on


class VertexAI(Platform):
    name = "vertex"
    title = "Vertex AI"
    service = "Vertex AI HTTPService"
    options = VertexOptions
    switch = "allow_vertex_ai"
    port = "vertex_ai_port"
    shown_by = f"{MODE} is set"
    required_model = "vertex_ai_default_model"
    infer_route = "/predict"
    infer_variables = MappingProxyType({PREDICT_ROUTE: infer_route, HEALTH_ROUTE: "/health"})
    binary_type = "application/vnd.vertex-ai-triton.binary+json"

    def evidence(self, environ: Mapping[str, str], given: OptionValues) -> Evidence | None:
        return Evidence(MODE) if _mode(environ) else None

    def texts(self, environ: Mapping[str, str], *, on_platform: bool) -> PlatformTexts:
        """Outside a container of the platform some of the variables are read too, as Triton does."""
        warnings: tuple[str, ...] = ()
        if on_platform and _mode(environ) != PREDICTION:
            warnings = (
                f"{MODE} is '{_mode(environ)}' and not {PREDICTION}: this is a rehearsal of a Vertex AI container, "
                "with the same routes",
            )
        return PlatformTexts(options=server_options(environ, on_platform=on_platform), warnings=warnings)

    def settings(self, given: OptionValues, environ: Mapping[str, str], *, on_platform: bool) -> VertexSettings:
        """Raises ConfigInvalid for a route that is not a path."""
        options = given.of(VertexOptions)
        mode = _mode(environ)
        predict_route, health_route, sources = read_routes(environ)
        return VertexSettings(
            port=options.vertex_ai_port,
            thread_count=options.vertex_ai_thread_count,
            mode=mode,
            predict_route=predict_route,
            health_route=health_route,
            default_model=options.vertex_ai_default_model,
            payload=PayloadKind(options.vertex_ai_payload),
            key_field=options.vertex_ai_key_field,
            max_request_size=options.vertex_ai_max_request_size,
            max_response_size=options.vertex_ai_max_response_size,
            timeout_s=options.vertex_ai_timeout_secs,
            public_groups=split_groups(options.public_routes),
            sources={**sources, **({MODE: "environment"} if mode else {})},
        )

    def application(self, settings: VertexSettings, host: Host) -> V2Application:
        from trident.adapters.vertex.application import VertexApplication

        return VertexApplication(host.engine, host.options, host.bridge, settings, host.metrics_page)


def _mode(environ: Mapping[str, str]) -> str:
    return environ.get(MODE, "").strip()
