"""What the protocol says of the server and of a model: metadata, statistics and the repository index, as JSON values.

Source: spec/http.md sections 3 and 8, spec/repository.md sections 1.4 and 1.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from core.config.model_spec import InputSpec, ModelSpec, OutputSpec
from core.lifecycle.models import ModelEntry
from core.lifecycle.state import ModelState
from core.lifecycle.version import ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOverview:
    """One line of the table that a person reads at start. `version` is empty for a model without any."""

    model: str
    version: str
    state: str
    device: str = ""
    execution_provider: str = ""
    reason: str = ""


EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


def server_metadata(server_id: str, server_version: str) -> dict[str, Any]:
    return {"name": server_id, "version": server_version, "extensions": list(EXTENSIONS)}


def model_metadata(spec: ModelSpec, versions: Sequence[int]) -> dict[str, Any]:
    """Shapes carry a leading -1 where the model has a batch dimension."""
    return {
        "name": spec.name,
        "versions": [str(version) for version in versions],
        "platform": spec.platform or spec.backend,
        "inputs": [_tensor(i, spec) for i in spec.inputs.values()],
        "outputs": [_tensor(o, spec) for o in spec.outputs.values()],
    }


def _tensor(tensor: InputSpec | OutputSpec, spec: ModelSpec) -> dict[str, Any]:
    batch = [-1] if spec.max_batch_size > 0 else []
    return {"name": tensor.name, "datatype": tensor.datatype.name, "shape": [*batch, *tensor.dims]}


def model_statistics(versions: Iterable[ModelVersion]) -> dict[str, Any]:
    return {"model_stats": [{"name": v.name, "version": str(v.version), **v.statistics.as_json()} for v in versions]}


def repository_index(entries: Iterable[ModelEntry], ready_only: bool) -> list[dict[str, str]]:
    """One item per version, or one with the name alone for a model that was never loaded."""
    index: list[dict[str, str]] = []
    for entry in entries:
        if not entry.versions and not ready_only:
            index.append({"name": entry.name, **_unavailable(entry.problem)})
        for version in entry.versions.values():
            if version.is_ready or not ready_only:
                item = {"name": entry.name, "version": str(version.version), "state": version.state.current.value}
                if version.state.reason:
                    item["reason"] = version.state.reason
                index.append(item)
    return index


def _unavailable(problem: str) -> dict[str, str]:
    return {"state": ModelState.UNAVAILABLE.value, "reason": problem} if problem else {}


def overview(entries: Iterable[ModelEntry]) -> list[VersionOverview]:
    lines: list[VersionOverview] = []
    for entry in entries:
        if not entry.versions:
            lines.append(
                VersionOverview(model=entry.name, version="", state=ModelState.UNAVAILABLE.value, reason=entry.problem)
            )
        lines += [
            VersionOverview(
                model=entry.name,
                version=str(version.version),
                state=version.state.current.value,
                device=version.description.get("device", ""),
                execution_provider=version.description.get("execution provider", ""),
                reason=version.state.reason,
            )
            for version in entry.versions.values()
        ]
    return lines
