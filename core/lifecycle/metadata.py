"""What the protocol says of the server and of a model: metadata, statistics and the repository index, as JSON values.

Source: docs/spec/http.md sections 3 and 8, docs/spec/repository.md sections 1.4 and 1.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.config.model_spec import InputSpec, ModelSpec, OutputSpec
from core.lifecycle.model import Model
from core.lifecycle.state import UNLOADED, ModelState
from core.lifecycle.version import ModelVersion
from core.repository.repositories import ModelKey


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


def repository_index(models: Iterable[Model], names: Mapping[ModelKey, str], ready_only: bool) -> list[dict[str, str]]:
    """One item per version, or one with the name alone for a model that was never loaded.

    `names` are all model directories, with why they cannot be loaded. The reason of a version that is ready is why a
    newer one did not take its place.
    """
    items: dict[ModelKey, list[dict[str, str]]] = {}
    if not ready_only:
        items = {key: [{"name": key.name, **_unavailable(problem)}] for key, problem in names.items()}
    for model in models:
        versions = [v for _, v in sorted(model.versions.items()) if v.is_ready or not ready_only]
        if versions:
            items[model.key] = [_index_item(model, version) for version in versions]
        elif model.problem and not model.versions and not ready_only:
            items[model.key] = [{"name": model.key.name, **_unavailable(model.problem)}]
    return [item for key in sorted(items) for item in items[key]]


def _index_item(model: Model, version: ModelVersion) -> dict[str, str]:
    item = {"name": model.key.name, "version": str(version.version), "state": version.state.current.value}
    reason = _reason(model, version)
    return {**item, "reason": reason} if reason else item


def _reason(model: Model, version: ModelVersion) -> str:
    """The last thing that went wrong: what kept the model from being looked at concerns all that is not unloaded."""
    own = version.state.reason or version.reload_failure
    return own if own == UNLOADED or version.state.current is ModelState.UNLOADING else model.problem or own


def _unavailable(problem: str) -> dict[str, str]:
    return {"state": ModelState.UNAVAILABLE.value, "reason": problem} if problem else {}


def overview(models: Iterable[Model]) -> list[VersionOverview]:
    lines: list[VersionOverview] = []
    for model in models:
        name = model.key.name
        if not model.versions:
            lines.append(
                VersionOverview(model=name, version="", state=ModelState.UNAVAILABLE.value, reason=model.problem)
            )
        lines += [
            VersionOverview(
                model=name,
                version=str(version.version),
                state=version.state.current.value,
                device=version.description.get("device", ""),
                execution_provider=version.description.get("execution provider", ""),
                reason=_reason(model, version),
            )
            for _, version in sorted(model.versions.items())
        ]
    return lines
