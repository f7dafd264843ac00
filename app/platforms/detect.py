"""Detects the platform on which the server was started, and reads the settings that it gives.

The command line overrides `TRIDENT_*` variables, which override the platform's variables and then its defaults.
Source: docs/spec/sagemaker.md sections A1, B1 and B2; docs/spec/vertex.md sections A1 and B1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trident.adapters.common.options import BadOption, Option
from trident.adapters.sagemaker.settings import SageMakerSettings
from trident.adapters.vertex.settings import VertexSettings
from trident.app.platforms.sagemaker import SAGEMAKER, on_sagemaker, sagemaker_evidence, sagemaker_settings
from trident.app.platforms.vertex import VERTEX, on_vertex, vertex_evidence, with_vertex_variables
from trident.app.settings.sources import Given, collect
from trident.core.errors import ServerError

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Found:
    """The given settings, including the platform's. `sagemaker` and `vertex` are None if their routes are not served.

    With `any_layout` the repository is the platform's, which may be a single model.
    """

    given: Given
    sagemaker: SageMakerSettings | None = None
    vertex: VertexSettings | None = None
    any_layout: bool = False
    warnings: tuple[str, ...] = ()


def find_platform(options: Mapping[str, Option], arguments: Sequence[str], environ: Mapping[str, str]) -> Found:
    """The settings of the detected platform. Checks SageMaker's directories. Raises BadOption."""
    try:
        return _find(options, arguments, environ)
    except ServerError as error:
        raise BadOption(f"{error.message}\n{error.hint}" if error.hint else error.message) from None


def _find(options: Mapping[str, Option], arguments: Sequence[str], environ: Mapping[str, str]) -> Found:
    given = collect(options, arguments, environ)
    asked = given.values.get("platform", "auto")
    evidence = _evidence(options, given, environ) if asked == "auto" else (asked, "")
    if evidence[0] == SAGEMAKER:
        on_platform = on_sagemaker(options, arguments, environ, evidence[1])
        return Found(
            on_platform.given,
            on_platform.settings,
            any_layout=on_platform.any_layout,
            warnings=on_platform.warnings,
        )
    if evidence[0] == VERTEX:
        found = on_vertex(options, arguments, environ, evidence[1])
        return Found(found.given, vertex=found.settings, any_layout=found.any_layout, warnings=found.warnings)
    sagemaker = sagemaker_settings(options, given, environ) if given.values.get("allow_sagemaker") else None
    if asked == PLAIN and not given.values.get("allow_vertex_ai"):
        return Found(given, sagemaker)
    beside = with_vertex_variables(options, arguments, environ)
    return Found(beside.given, sagemaker, beside.settings, beside.any_layout)


def _evidence(options: Mapping[str, Option], given: Given, environ: Mapping[str, str]) -> tuple[str, str]:
    """The platform, and the variable or the directory that shows it; two empty texts without one. Raises BadOption."""
    vertex, sagemaker = vertex_evidence(environ), sagemaker_evidence(options, given, environ)
    if vertex and sagemaker.startswith("/"):
        sagemaker = ""  # a directory may exist by chance, a variable is not set by chance
    if vertex and sagemaker:
        raise BadOption(
            f"{vertex} is set, which shows Vertex AI, and {sagemaker}, which shows SageMaker: choose one with "
            "--platform=vertex or --platform=sagemaker"
        )
    return (VERTEX, vertex) if vertex else (SAGEMAKER, sagemaker) if sagemaker else ("", "")
