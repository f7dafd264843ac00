"""Ensembles in a repository, and real models for their steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

# Name, TYPE_… and dimensions.
Tensor = tuple[str, str, Sequence[int]]


def step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str], version: int = -1) -> str:
    """`inputs` and `outputs` map the model's tensors to those of the ensemble."""
    maps = [
        f'{field} {{ key: "{name}" value: "{tensor}" }}'
        for field, pairs in (("input_map", inputs), ("output_map", outputs))
        for name, tensor in pairs.items()
    ]
    return f'step {{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}'


def ensemble_config(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], steps: Sequence[str], *, batch: int = 8, more: str = ""
) -> str:
    sides = [("input", inputs), ("output", outputs)]
    tensors = [
        f'{side} {{ name: "{name}" data_type: {datatype} dims: [ {", ".join(map(str, dims))} ] }}'
        for side, found in sides
        for name, datatype, dims in found
    ]
    scheduling = f"ensemble_scheduling {{ {' '.join(steps)} {more} }}"
    return f'platform: "ensemble"\nmax_batch_size: {batch}\n' + "\n".join([*tensors, scheduling]) + "\n"


def write_ensemble(
    repository: Path,
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    steps: Sequence[str],
    *,
    batch: int = 8,
    more: str = "",
) -> Path:
    """An ensemble with an empty version folder. Returns its folder."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(ensemble_config(inputs, outputs, steps, batch=batch, more=more))
    return repository / name
