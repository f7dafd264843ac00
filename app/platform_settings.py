"""The settings of the platforms whose routes are served beside or in place of the v2 protocol's port.

Source: spec/server-options.md section 2 "SageMaker".
"""

from __future__ import annotations

from dataclasses import dataclass

from adapters.sagemaker.settings import parse_port_range
from app.option_kinds import BOOLEAN, PORT, TEXT, BadValue, Kind, choice, integer
from app.options import option

_PLATFORM = "Platform"


def _port_range(text: str) -> str:
    try:
        parse_port_range(text)
    except ValueError as error:
        raise BadValue(f"--sagemaker-safe-port-range: {error}") from None
    return text


@dataclass(frozen=True, kw_only=True, repr=False)
class PlatformSettings:
    """Part of ServerSettings. What the variables of SageMaker say is in `ServerSettings.sagemaker`."""

    platform: str = option(
        "auto",
        "platform",
        choice("platform", "auto", "plain", "sagemaker", "vertex"),
        "Whose container the server is. auto is sagemaker where a SAGEMAKER_* variable is set, or where no model "
        "repository is given and one of SageMaker's directories exists; else plain.",
        section=_PLATFORM,
        own=True,
    )
    allow_sagemaker: bool = option(
        False, "allow-sagemaker", BOOLEAN, "Whether SageMaker's port is opened.", section=_PLATFORM
    )
    sagemaker_port: int = option(
        8080, "sagemaker-port", PORT, "SageMaker's port, at the address of --http-address.", section=_PLATFORM
    )
    sagemaker_safe_port_range: str = option(
        "",
        "sagemaker-safe-port-range",
        Kind("<low>-<high>", _port_range),
        "The ports within which all other ports must lie.",
        section=_PLATFORM,
    )
    sagemaker_thread_count: int = option(
        8,
        "sagemaker-thread-count",
        integer(1),
        "As --http-thread-count, for SageMaker's port.",
        section=_PLATFORM,
    )
    sagemaker_model_root: str = option(
        "/opt/ml/model",
        "sagemaker-model-root",
        TEXT,
        "Directory into which SageMaker unpacks the model of an endpoint.",
        section=_PLATFORM,
        own=True,
    )
    sagemaker_models_root: str = option(
        "/opt/ml/models",
        "sagemaker-models-root",
        TEXT,
        "The same of a multi-model endpoint.",
        section=_PLATFORM,
        own=True,
    )
    sagemaker_memory_limit_mb: int = option(
        0,
        "sagemaker-memory-limit-mb",
        integer(0),
        "Megabytes that the server may take with the models of a multi-model endpoint, where that is less than the "
        "container has; 0: what the container has.",
        section=_PLATFORM,
        own=True,
    )
