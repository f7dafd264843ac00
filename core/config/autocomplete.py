"""Auto-complete: fills what a configuration leaves out from the model's graph.

Source: docs/spec/model-config.md section 2.4; docs/spec/onnxruntime-backend.md section 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trident.core.config.platforms import CPU_INSTANCES, TENSORRT, fill_platform, is_ensemble
from trident.core.config.problem import ModelSignature, Problem, TensorSignature
from trident.core.config.resolve import own_inputs, own_outputs
from trident.core.config.schema import ModelConfig, ModelInput, ModelInstanceGroup, ModelOutput, data_type_of
from trident.core.errors import ConfigInvalid
from trident.core.inference.tensors import BY_NAME, shape_text

# The GPUs that instances may use; None if the server does not support GPUs, whatever the machine has.
GpuIds = Sequence[int] | None


class CpuInstead(tuple[int, ...]):
    """GpuIds without a GPU, of a server that then runs the instances of KIND_GPU on its CPU: --gpu-missing=cpu."""


# Both hints, each with all of its steps.
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
            group.count = CPU_INSTANCES.get(config.backend, 1) if on_cpu else 1
        if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(gpu_ids or ())


def groups_on_cpu_instead(written: ModelConfig, normalized: ModelConfig) -> list[str]:
    pairs = zip(written.instance_group, normalized.instance_group, strict=False)
    cpu = ModelInstanceGroup.KIND_CPU
    return [group.name for asked, group in pairs if _asks_for_gpu(asked) and group.kind == cpu and not group.gpus]


def _asks_for_gpu(group: ModelInstanceGroup) -> bool:
    kinds = ModelInstanceGroup
    return group.kind == kinds.KIND_GPU or (group.kind == kinds.KIND_AUTO and len(group.gpus) > 0)


def instance_group_problems(config: ModelConfig, model_name: str, gpu_ids: GpuIds) -> list[Problem]:
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
        return [Problem(f"{path}.kind", text, f"{_ON_CPU} install the extra 'gpu' and {_ON_GPU}")]
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


# Receives a function that ends an endless process, to be called with the reason.
Watch = Callable[[Callable[[str], object]], None]


def unwatched(end: Callable[[str], object]) -> None:
    """A Watch that waits as long as it takes."""


@dataclass(slots=True)
class Preparation:
    """Result of an inspection, for the load after it: `made` is the backend's own object or None.

    `threads` is the number that the thread plan grants to one execution. `signature` is that of the graph from which
    the configuration was completed; None if nothing was missing.
    """

    threads: int
    made: Any = None
    signature: ModelSignature | None = None

    def take(self) -> Any:
        """Return `made` and pass its ownership to the caller."""
        made, self.made = self.made, None
        return made


class BackendFacts(Protocol):
    """Answers for the backend of a configuration. Loader threads, several at once. Each method raises a ServerError."""

    def gpu_ids(self, config: ModelConfig) -> GpuIds:
        """The GPUs that the instances may use."""
        ...

    def default_max_batch_size(self, config: ModelConfig) -> int:
        """The `max_batch_size` of a model that can batch and does not set one; 0 for none."""
        ...

    def completes(self, config: ModelConfig) -> bool:
        """Return true for a model that completes its configuration itself, also one that is complete."""
        ...

    def complete(self, path: Path, config: ModelConfig, watch: Watch) -> None:
        """Have the model in the version directory `path` complete `config` in place. Only called if it `completes`."""
        ...

    def inspect(self, path: Path, config: ModelConfig, preparation: Preparation | None = None) -> ModelSignature | None:
        """The inputs and outputs of the model in the version directory `path`; None if it has none of its own.

        With a `preparation` it is going to be loaded.
        """
        ...

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError if the complete configuration asks for something that this server does not have."""
        ...


# Source: docs/spec/model-config.md sections 2.2 (normalisation) and 2.5.


_SEQUENCE_IDLE_US = 1_000_000


def fill_identity(config: ModelConfig, directory_name: str, files: Collection[str]) -> None:
    """Fill name, platform, backend and default_model_filename in place, with or without auto-complete.

    `files` are the names in the model's first sub-directory.
    """
    config.name = config.name or directory_name
    fill_platform(config, files)


def normalize(config: ModelConfig, gpu_ids: GpuIds) -> None:
    """Fill Triton's defaults into `config` in place; called before auto-complete and again after it."""
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    latest = config.version_policy.WhichOneof("policy_choice") == "latest"
    if latest and config.version_policy.latest.num_versions == 0:
        config.version_policy.latest.num_versions = 1
    batcher: Any = None  # either has preferred_batch_size
    if config.HasField("dynamic_batching"):
        batcher = config.dynamic_batching
    elif config.HasField("sequence_batching"):
        sequence = config.sequence_batching
        sequence.max_sequence_idle_microseconds = sequence.max_sequence_idle_microseconds or _SEQUENCE_IDLE_US
        if sequence.HasField("oldest"):
            batcher = sequence.oldest
    if batcher is not None and not batcher.preferred_batch_size and config.max_batch_size > 0:
        batcher.preferred_batch_size.append(config.max_batch_size)
    if not is_ensemble(config):
        optimization = config.optimization
        if not optimization.HasField("input_pinned_memory"):
            optimization.input_pinned_memory.enable = True
        if not optimization.HasField("output_pinned_memory"):
            optimization.output_pinned_memory.enable = True
    normalize_instance_groups(config, gpu_ids)


_log = logging.getLogger("trident.config")


def is_complete(config: ModelConfig) -> bool:
    return bool((config.input or config.batch_input) and config.output)


def needs_signature(config: ModelConfig) -> bool:
    complete = is_complete(config)
    if complete:
        _log.info(
            "skipping model configuration auto-complete for '%s': inputs and outputs already specified", config.name
        )
    return not complete


def auto_complete(config: ModelConfig, signature: ModelSignature, default_max_batch_size: int) -> None:
    """Fill max_batch_size, the scheduler and the missing sides of `config` in place from `signature`.

    Raises ConfigInvalid if the configuration asks for batching and the graph cannot batch.
    """
    _fill_batching(config, signature, default_max_batch_size)
    batching = config.max_batch_size > 0
    if not config.input and not config.batch_input:
        provided = own_inputs(config)
        for tensor in signature.inputs:
            if tensor.name not in provided:
                _fill_tensor(config.input.add(), tensor, batching)
    if not config.output:
        kept = own_outputs(config)
        for tensor in signature.outputs:
            if tensor.name not in kept:
                _fill_tensor(config.output.add(), tensor, batching)


def _fill_batching(config: ModelConfig, signature: ModelSignature, default_max_batch_size: int) -> None:
    if signature.can_batch is False:
        if config.max_batch_size > 0:
            _log.warning(
                "model layout for model %s does not support batching while non-zero max_batch_size is specified",
                config.name,
            )
        return
    sides = (("input", signature.inputs), ("output", signature.outputs))
    fixed = [
        f"{side} '{tensor.name}' has shape {shape_text(tensor.shape)}"
        for side, tensors in sides
        for tensor in tensors
        if not signature.can_batch and tensor.shape[:1] != (-1,)
    ]
    if fixed:
        if config.max_batch_size != 0:
            raise ConfigInvalid(
                f"autofill failed for model '{config.name}': model does not support batching while non-zero "
                "max_batch_size is specified",
                hint=f"{fixed[0]}: set max_batch_size to 0, or export the model with a dynamic first dimension",
                model=config.name,
            )
        if default_max_batch_size > 0:
            _log.warning(
                "model '%s' runs one request at a time, because the first dimension of each tensor must be -1 for "
                "batching, and %s; to batch it, export it with a dynamic first dimension",
                config.name,
                fixed[0],
            )
        return
    fault = signature.batching_fault
    if config.max_batch_size == 0 and default_max_batch_size > 0:
        if fault is not None:
            _log.warning(
                "model '%s' runs one request at a time, because a trial has shown that its graph does not keep the "
                "requests of a batch apart: %s; to batch it, %s",
                config.name,
                fault.seen,
                fault.cure,
            )
            return
        config.max_batch_size = default_max_batch_size
        _log.warning(
            "autofilled max_batch_size to %d for model '%s' since batching is supported but no max_batch_size is "
            "specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max "
            "batch size",
            default_max_batch_size,
            config.name,
        )
    if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.SetInParent()


def _fill_tensor(entry: ModelInput | ModelOutput, tensor: TensorSignature, batching: bool) -> None:
    entry.name = tensor.name
    entry.data_type = data_type_of(BY_NAME.get(tensor.datatype))
    dims = tensor.shape[1:] if batching else tensor.shape
    # A configuration cannot express a dimension of 0, so that it becomes variable. The graph still checks it.
    entry.dims.extend([dim or -1 for dim in dims] or (1,))
    if batching and not dims:
        entry.reshape.SetInParent()
