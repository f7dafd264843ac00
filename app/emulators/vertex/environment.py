"""What the container finds set, and how its arguments are read.

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

RESERVED_PREFIX = "AIP_"
_MACHINE_TYPE = "n1-standard-4"
# Inside a real container nobody else is on its ports, and its address is the outside's.
_METRICS_PORT = "TRIDENT_METRICS_PORT"
_CACHE_DIRECTORY = "TRIDENT_MODEL_CACHE_DIRECTORY"
_REFERENCE = re.compile(r"\$(?:\$|\(([A-Za-z_][A-Za-z0-9_]*)\))")


def platform_variables(deployment: Deployment, port: int, storage_uri: str) -> dict[str, str]:
    """All that the platform sets; of an accelerator it says nothing where there is none."""
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


def machine_variables(metrics_port: int, disk: Path) -> dict[str, str]:
    """What makes a process of this machine a container that has everything to itself; `disk` ends with it."""
    return {
        HTTP_ADDRESS: HOST,
        _METRICS_PORT: str(metrics_port),
        _CACHE_DIRECTORY: str(disk / "cache"),
        "TMPDIR": str(disk),
    }


def container_environment(
    inherited: Mapping[str, str],
    machine: Mapping[str, str],
    platform: Mapping[str, str],
    variables: Mapping[str, str],
) -> dict[str, str]:
    """`inherited` stands for what the image sets; `variables` are the model's, which may refer to others."""
    known = dict(platform)
    for name, text in variables.items():
        known[name] = expanded(text, known)
    return {**inherited_environment(inherited), **machine, **known}


def container_arguments(
    arguments: Iterable[str], platform: Mapping[str, str], variables: Mapping[str, str]
) -> list[str]:
    """The arguments with the values of the platform's variables and the model's where they refer to these."""
    known = dict(platform)
    for name, text in variables.items():
        known[name] = expanded(text, known)
    return [expanded(text, known) for text in arguments]


def expanded(text: str, known: Mapping[str, str]) -> str:
    """`text` with each `$(NAME)` of `known` replaced; `$$` is a dollar, and an unknown name stays as it stands."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        return "$" if name is None else known.get(name, found[0])

    return _REFERENCE.sub(value, text)
