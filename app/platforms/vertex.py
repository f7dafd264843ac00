"""The settings that a Vertex AI container gives.

Source: docs/spec/vertex.md sections A1, B1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trident.adapters.common.options import Option
from trident.adapters.vertex.settings import (
    MODE,
    PREDICTION,
    STORAGE_URI,
    PayloadKind,
    VertexSettings,
    read_routes,
    server_options,
)
from trident.app.settings.groups import split_groups
from trident.app.settings.sources import Given, PlatformText, collect

VERTEX = "vertex"


@dataclass(frozen=True, slots=True)
class OnVertex:
    """`settings` is None if the platform's port is not opened. With `any_layout` the repository is the platform's."""

    given: Given
    settings: VertexSettings | None
    any_layout: bool
    warnings: tuple[str, ...] = ()


def vertex_evidence(environ: Mapping[str, str]) -> str:
    """The variable that shows that this is a Vertex AI container, or a rehearsal of one; "" without it."""
    return MODE if environ.get(MODE, "").strip() else ""


def on_vertex(
    options: Mapping[str, Option], arguments: Sequence[str], environ: Mapping[str, str], evidence: str
) -> OnVertex:
    """The settings in a Vertex AI container. Raises BadOption, and ConfigInvalid for a route that is not a path."""
    found = _collected(options, arguments, environ, on_platform=True)
    if evidence:
        found.given.set("platform", VERTEX, evidence)
    mode = environ.get(MODE, "").strip()
    warnings: tuple[str, ...] = ()
    if mode != PREDICTION:
        warnings = (
            f"{MODE} is '{mode}' and not {PREDICTION}: this is a rehearsal of a Vertex AI container, with the same "
            "routes",
        )
    return OnVertex(found.given, found.settings, found.any_layout, warnings)


def with_vertex_variables(
    options: Mapping[str, Option], arguments: Sequence[str], environ: Mapping[str, str]
) -> OnVertex:
    """The settings outside a Vertex AI container, where some of the variables are read too, as Triton does."""
    return _collected(options, arguments, environ, on_platform=False)


def _collected(
    options: Mapping[str, Option], arguments: Sequence[str], environ: Mapping[str, str], *, on_platform: bool
) -> OnVertex:
    by_flag = {each.flag: each for each in options.values() if each.flag}
    texts = [
        PlatformText(by_flag[flag], text, source)
        for flag, text, source in server_options(environ, on_platform=on_platform)
    ]
    given = collect(options, arguments, environ, platform=texts)
    settings = _settings(options, given, environ) if given.values.get("allow_vertex_ai") else None
    return OnVertex(given, settings, given.sources.get("model_repository") == STORAGE_URI)


def _settings(options: Mapping[str, Option], given: Given, environ: Mapping[str, str]) -> VertexSettings:
    def value(name: str) -> Any:
        return given.values.get(name, options[name].default)

    predict_route, health_route, sources = read_routes(environ)
    mode = environ.get(MODE, "").strip()
    return VertexSettings(
        mode=mode,
        predict_route=predict_route,
        health_route=health_route,
        default_model=value("vertex_ai_default_model"),
        payload=PayloadKind(value("vertex_ai_payload")),
        key_field=value("vertex_ai_key_field"),
        max_request_size=value("vertex_ai_max_request_size"),
        max_response_size=value("vertex_ai_max_response_size"),
        timeout_s=value("vertex_ai_timeout_secs"),
        public_groups=split_groups(value("public_routes")),
        sources={**sources, **({MODE: "environment"} if mode else {})},
    )
