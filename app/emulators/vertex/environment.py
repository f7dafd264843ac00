"""The container's environment and arguments.

Source: docs/spec/vertex.md section A1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from adapters.vertex.settings import (
    DEPLOYED_MODEL_ID,
    ENDPOINT_ID,
    HEALTH_ROUTE,
    HTTP_PORT,
    MODE,
    PREDICT_ROUTE,
    PREDICTION,
    STORAGE_URI,
)
from app.emulators.common.container_client import HOST
from app.emulators.common.inherited_environment import HTTP_ADDRESS, inherited_environment
from app.emulators.vertex.deployment import Deployment
from app.settings.cloud_cache import CloudCache

RESERVED_PREFIX = "AIP_"
_MACHINE_TYPE = "n1-standard-4"
# A real container has its ports to itself and listens on all addresses.
_METRICS_PORT = "TRIDENT_METRICS_PORT"
_CACHE_DIRECTORY = "TRIDENT_MODEL_CACHE_DIRECTORY"
_CACHE_BYTES = "TRIDENT_MODEL_CACHE_BYTES"
_REFERENCE = re.compile(r"\$(?:\$|\(([A-Za-z_][A-Za-z0-9_]*)\))")


def platform_variables(deployment: Deployment, port: int, storage_uri: str) -> dict[str, str]:
    """The variables that the platform sets for a machine without an accelerator."""
    return {
        HTTP_PORT: str(port),
        PREDICT_ROUTE: deployment.predict_path,
        HEALTH_ROUTE: deployment.health_path,
        STORAGE_URI: storage_uri,
        MODE: PREDICTION,
        "AIP_MODE_VERSION": "1.0.0",
        "AIP_FRAMEWORK": "CUSTOM_CONTAINER",
        ENDPOINT_ID: deployment.endpoint_id,
        DEPLOYED_MODEL_ID: deployment.deployed_model_id,
        "AIP_MODEL_NAME": deployment.endpoint_id,
        "AIP_VERSION_NAME": deployment.deployed_model_id,
        "AIP_MACHINE_TYPE": _MACHINE_TYPE,
        "AIP_PROJECT_NUMBER": deployment.project_number,
    }


def machine_variables(metrics_port: int, disk: Path, cache: CloudCache | None = None) -> dict[str, str]:
    """Variables that isolate the process as a container would; `disk` is removed after it ends.

    `cache` keeps artifacts from the storage for the next run; None: they are on the disk too.
    """
    size = {} if cache is None else {_CACHE_BYTES: str(cache.max_bytes)}
    return {
        **size,
        HTTP_ADDRESS: HOST,
        _METRICS_PORT: str(metrics_port),
        _CACHE_DIRECTORY: str(disk / "cache" if cache is None else cache.path.absolute()),
        "TMPDIR": str(disk),
    }


def container_environment(
    inherited: Mapping[str, str],
    machine: Mapping[str, str],
    platform: Mapping[str, str],
    variables: Mapping[str, str],
) -> dict[str, str]:
    """`inherited` takes the place of the image's variables; `variables` are the model's and may refer to others."""
    known = dict(platform)
    for name, text in variables.items():
        known[name] = expanded(text, known)
    return {**inherited_environment(inherited), **machine, **known}


def container_arguments(
    arguments: Iterable[str], platform: Mapping[str, str], variables: Mapping[str, str]
) -> list[str]:
    """The arguments with their references to the platform's and the model's variables replaced."""
    known = dict(platform)
    for name, text in variables.items():
        known[name] = expanded(text, known)
    return [expanded(text, known) for text in arguments]


def expanded(text: str, known: Mapping[str, str]) -> str:
    """`text` with each `$(NAME)` of `known` replaced; `$$` is a dollar sign, and unknown names stay as they are."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        return "$" if name is None else known.get(name, found[0])

    return _REFERENCE.sub(value, text)
