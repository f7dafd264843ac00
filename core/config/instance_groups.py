"""Instance groups: their defaults (names, kinds, counts and GPUs) and their problems.

Source: docs/spec/model-config.md section 2.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.config.platforms import TENSORRT, default_cpu_instances, is_ensemble
from core.config.problem import Problem
from core.config.schema import ModelConfig, ModelInstanceGroup

# The GPUs that instances may use; None if the server does not support GPUs, whatever the machine has.
GpuIds = Sequence[int] | None


class CpuInstead(tuple[int, ...]):
    """GpuIds without a GPU, of a server that then runs the instances of KIND_GPU on its CPU: --gpu-missing=cpu."""


# Both ways out, each with all of its steps.
_ON_CPU = "to run it on the CPU, start the server with --gpu-missing=cpu, or use KIND_CPU; to run it on a GPU,"
_ON_GPU = "start the server where it sees one (docker run --gpus=all)"

_KINDS = frozenset(ModelInstanceGroup.Kind.values())


def normalize_instance_groups(config: ModelConfig, gpu_ids: GpuIds) -> None:
    """Fill the groups' defaults in place, for a machine with the GPUs `gpu_ids`; a second call changes nothing.

    The groups that ask for a GPU become groups of the CPU if `gpu_ids` are CpuInstead.
    """
    if is_ensemble(config):
        return
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{index}"
        if isinstance(gpu_ids, CpuInstead) and _asks_for_gpu(group):
            group.kind = ModelInstanceGroup.KIND_CPU
            del group.gpus[:]
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            on_gpu = gpu_ids and all(gpu in gpu_ids for gpu in group.gpus)
            group.kind = ModelInstanceGroup.KIND_GPU if on_gpu else ModelInstanceGroup.KIND_CPU
        on_cpu = group.kind == ModelInstanceGroup.KIND_CPU
        if group.count < 1:
            group.count = default_cpu_instances(config) if on_cpu else 1
        if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(gpu_ids or ())


def groups_on_cpu_instead(written: ModelConfig, normalized: ModelConfig) -> list[str]:
    """The names of the groups that ask for a GPU in `written` and are on the CPU in `normalized`."""
    pairs = zip(written.instance_group, normalized.instance_group, strict=False)
    cpu = ModelInstanceGroup.KIND_CPU
    return [group.name for asked, group in pairs if _asks_for_gpu(asked) and group.kind == cpu and not group.gpus]


def _asks_for_gpu(group: ModelInstanceGroup) -> bool:
    kinds = ModelInstanceGroup
    return group.kind == kinds.KIND_GPU or (group.kind == kinds.KIND_AUTO and len(group.gpus) > 0)


def instance_group_problems(config: ModelConfig, model_name: str, gpu_ids: GpuIds) -> list[Problem]:
    """The problems of the groups of a normalised `config`, on a machine with the GPUs `gpu_ids`."""
    if is_ensemble(config):
        return []
    groups = config.instance_group
    if not groups:
        return [Problem("instance_group", f"must specify one or more 'instance group's for {model_name}")]
    problems: list[Problem] = []
    for index, group in enumerate(groups):
        prefix = f"instance group {group.name} of model {model_name}"
        path = f"instance_group[{index}]"
        if group.kind == ModelInstanceGroup.KIND_GPU:
            problems += _gpu_problems(group, path, prefix, gpu_ids)
        elif group.gpus:
            kind = ModelInstanceGroup.Kind.Name(group.kind) if group.kind in _KINDS else str(group.kind)
            problems.append(
                Problem(f"{path}.gpus", f"{prefix} has kind {kind} but specifies one or more GPUs", "remove 'gpus'")
            )
        if group.profile and config.platform != TENSORRT:
            text = f"{prefix} and platform {config.platform}specifies profile field which is only supported for "
            problems.append(Problem(f"{path}.profile", text + "TensorRT models"))
    if all(group.passive for group in groups):
        text = f"every instance group of model {model_name} is passive, so no instance would execute requests"
        problems.append(Problem("instance_group", text, "make one group active"))
    return problems


def _gpu_problems(group: ModelInstanceGroup, path: str, prefix: str, gpu_ids: GpuIds) -> list[Problem]:
    if gpu_ids is None:
        text = f"{prefix} has kind KIND_GPU but server does not support GPUs"
        return [Problem(f"{path}.kind", text, f"{_ON_CPU} install trident-inference[gpu] and {_ON_GPU}")]
    if not gpu_ids:
        text = f"{prefix} has kind KIND_GPU but no GPUs are available"
        return [Problem(f"{path}.kind", text, f"{_ON_CPU} {_ON_GPU}")]
    if not group.gpus:
        return [Problem(f"{path}.gpus", f"{prefix} has kind KIND_GPU but specifies no GPUs")]
    listed = ", ".join(map(str, gpu_ids))
    return [
        Problem(
            f"{path}.gpus",
            f"{prefix} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required CUDA "
            f"compute compatibility of 6.000000 are: {listed}",
        )
        for gpu in group.gpus
        if gpu not in gpu_ids
    ]
