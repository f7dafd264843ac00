"""Vertex AI as a platform of the registry: its environment variables, its options and settings, and its application.

Source: docs/spec/vertex.md sections A1 and B1, docs/spec/server-options.md section 2 "Vertex AI"; a missing
route gets the platform's documented form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from trident.adapters.common.options import (
    BOOLEAN,
    PORT,
    TEXT,
    BadValue,
    OptionText,
    OptionValues,
    SettingRow,
    checked,
    choice,
    group,
    integer,
    number,
    option,
)
from trident.adapters.common.platform import Evidence, Host, Platform, PlatformSettings, PlatformTexts
from trident.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from trident.core.http.application import V2Application


MODE = "AIP_MODE"
HTTP_PORT = "AIP_HTTP_PORT"
PREDICT_ROUTE = "AIP_PREDICT_ROUTE"
HEALTH_ROUTE = "AIP_HEALTH_ROUTE"
STORAGE_URI = "AIP_STORAGE_URI"
ENDPOINT_ID = "AIP_ENDPOINT_ID"
DEPLOYED_MODEL_ID = "AIP_DEPLOYED_MODEL_ID"
# Older names of these two, which the platform also sets.
_OLD_NAMES = {ENDPOINT_ID: "AIP_MODEL_NAME", DEPLOYED_MODEL_ID: "AIP_VERSION_NAME"}
PREDICTION = "PREDICTION"
KEY_FIELD = "key"

_ROUTE = re.compile(r"/(?!/)[!-~]*")
# Characters that end the path of a URL, and characters that no path can have.
_NOT_IN_A_PATH = frozenset('?#<>"\\^`{|}')
_NO_ID = "0"


class PayloadKind(StrEnum):
    """The form of a JSON body on the predict route."""

    AUTO = "auto"
    """Whichever of the three its text looks like."""
    INSTANCES = "instances"
    V2 = "v2"
    GENERATE = "generate"


@dataclass(frozen=True, kw_only=True)
class VertexSettings(PlatformSettings):
    """`mode` is "" outside of the platform. The paths of routes are compared as sent, character by character.

    `key_field` is the member of an object instance that is not an input. Sizes are in bytes and times in seconds, 0 for
    no limit. `public_groups` has the names of the restricted APIs, and `metrics`.
    """

    mode: str = ""
    predict_route: str
    health_route: str
    payload: PayloadKind = PayloadKind.AUTO
    key_field: str = KEY_FIELD
    max_request_size: int = 0
    max_response_size: int = 0
    timeout_s: float = 0.0

    def describe(self) -> list[SettingRow]:
        """The rows of the table at the start; options of the server are in the server's table."""
        values = {MODE: self.mode, PREDICT_ROUTE: self.predict_route, HEALTH_ROUTE: self.health_route}
        return [SettingRow(name, text, self.sources.get(name, "default")) for name, text in values.items()]


def read_routes(environ: Mapping[str, str]) -> tuple[str, str, dict[str, str]]:
    """The predict route, the health route, and the sources of those that are set, by variable.

    Raises ConfigInvalid for a route that is not a path.
    """
    base = f"/v1/endpoints/{_id(environ, ENDPOINT_ID)}/deployedModels/{_id(environ, DEPLOYED_MODEL_ID)}"
    predict, health = _route(environ, PREDICT_ROUTE), _route(environ, HEALTH_ROUTE)
    sources = {name: "environment" for name, text in ((PREDICT_ROUTE, predict), (HEALTH_ROUTE, health)) if text}
    return predict or f"{base}:predict", health or base, sources


def _id(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "").strip() or environ.get(_OLD_NAMES[name], "").strip() or _NO_ID
    if not (text.isascii() and text.replace("-", "").replace("_", "").isalnum()):
        raise ConfigInvalid(f"the variable {name} is '{text}'; the platform's ids are digits")
    return text


def _route(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "").strip()
    if text and (not _ROUTE.fullmatch(text) or not _NOT_IN_A_PATH.isdisjoint(text)):
        raise ConfigInvalid(
            f"the variable {name} is '{text}'; it takes the path of a URL, such as /predict",
            hint="the path is taken literally, not as a regular expression",
        )
    return text


# The value of the variable is the value of the option. Triton reads these outside of the platform, too.
_VERBATIM = {HTTP_PORT: "vertex-ai-port", STORAGE_URI: "model-repository"}


def server_options(environ: Mapping[str, str], *, on_platform: bool) -> list[OptionText]:
    """The options that the variables set. `on_platform`: this is a container of the platform, or a rehearsal of one."""
    found = []
    if on_platform:
        found.append(OptionText("allow-vertex-ai", "true", MODE))
        found += [OptionText(closed, "false", MODE) for closed in ("allow-http", "allow-grpc")]
    for name, flag in _VERBATIM.items():
        text = environ.get(name, "").strip()
        if text:
            found.append(OptionText(flag, text, name))
    return found


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
        "Meaning of a JSON body on the predict route: instances, v2, generate, or what it looks like (auto).", own=True)
    vertex_ai_key_field: str = option(KEY_FIELD, TEXT,
        "Member of instances that is a batch job's key and no input.", own=True)
    vertex_ai_max_request_size: int = option(0, integer(0),
        "Largest request body on the predict route, in bytes; 0: only --http-max-input-size.", own=True)
    vertex_ai_max_response_size: int = option(0, integer(0),
        "Largest response body of the predict route, in bytes; 0: no limit.", own=True)
    vertex_ai_timeout_secs: float = option(0.0, number(0),
        "Seconds until a request to the predict route gets a 503 and leaves the queue; 0: no timeout.", own=True)
    public_routes: str = option(_PUBLIC, checked("<group>[,<group>...]", _check_routes),
        "Groups of routes, named as for --http-restricted-api, and metrics, that Vertex AI's port serves beside the "
        "platform's own; or none. With an invoke route prefix all callers reach them.", own=True)
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

        return VertexApplication(host, settings)


def _mode(environ: Mapping[str, str]) -> str:
    return environ.get(MODE, "").strip()
