"""The settings of the adapter, which the platform passes to its container in environment variables.

Source: docs/spec/vertex.md sections A1 and B1; a missing route gets the platform's documented form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from trident.adapters.common.options import OptionText, SettingRow
from trident.adapters.common.platform import PlatformSettings
from trident.core.errors import ConfigInvalid

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
    """What a JSON body on the predict route is."""

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


# Source: docs/spec/vertex.md section B1; docs/spec/server-options.md section 2 "Vertex AI".


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
