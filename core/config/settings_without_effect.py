"""The settings of a configuration that a model loads with, although they have no effect in this server.

Source: docs/spec/model-config.md, "In Trident".
"""

from __future__ import annotations

from collections.abc import Iterator

from core.config.platforms import TENSORRT
from core.config.problem import Problem
from core.config.schema import ModelConfig, ModelInstanceGroup


def settings_without_effect(written: ModelConfig) -> list[Problem]:
    """One entry for each of them, in the order of the configuration; `written` is as its author wrote it."""
    return [
        *_optimization(written),
        *_instance_groups(written),
        *_files(written),
        *_parameters(written),
        *_warmup(written),
    ]


def _optimization(config: ModelConfig) -> Iterator[Problem]:
    optimization = config.optimization
    is_plan = TENSORRT in (config.platform, f"{config.backend}_plan")
    if optimization.priority and not is_plan:
        yield Problem("optimization.priority", "The threads of all models have the priority of the server's process.")
    cuda = optimization.cuda
    if optimization.HasField("cuda") and not (is_plan and cuda == type(cuda)(busy_wait_events=cuda.busy_wait_events)):
        hint = "for CUDA graphs of TensorRT set 'trt_cuda_graph_enable' of the accelerator 'tensorrt' of an ONNX model"
        message = "Only busy_wait_events has an effect, and only for TensorRT plans: CUDA graphs are not captured."
        yield Problem("optimization.cuda", message, hint)
    if optimization.execution_accelerators.gpu_execution_accelerator and _is_cpu_only(config):
        path = "optimization.execution_accelerators.gpu_execution_accelerator"
        yield Problem(path, "No instance group is on a GPU.", "remove it, or add a group of KIND_GPU")
    for name in ("input_pinned_memory", "output_pinned_memory"):
        if optimization.HasField(name) and not getattr(optimization, name).enable:
            yield Problem(f"optimization.{name}", "Pinned memory is used for the batches of a GPU in any case.")
    if optimization.gather_kernel_buffer_threshold:
        path = "optimization.gather_kernel_buffer_threshold"
        yield Problem(path, "Batches are gathered on the CPU, never by a kernel.")
    if optimization.eager_batching:
        path = "optimization.eager_batching"
        yield Problem(path, "A batch is formed when an instance is free, not while it is busy.")


def _instance_groups(config: ModelConfig) -> Iterator[Problem]:
    for index, group in enumerate(config.instance_group):
        path = f"instance_group[{index}]"
        if group.host_policy:
            yield Problem(f"{path}.host_policy", "There are no host policies: threads are not bound to cores or nodes.")
        if group.secondary_devices:
            yield Problem(f"{path}.secondary_devices", "Instances use only the device of their group.")
        if group.passive:
            yield Problem(f"{path}.passive", "A passive group gets no instances, because nothing would use them.")


def _files(config: ModelConfig) -> Iterator[Problem]:
    if config.cc_model_filenames and _is_cpu_only(config):
        message = "These files are for GPUs by compute capability, and no instance group is on a GPU."
        yield Problem("cc_model_filenames", message)


def _parameters(config: ModelConfig) -> Iterator[Problem]:
    if "TRITON_BATCH_STRATEGY_PATH" in config.parameters:
        path = "parameters[TRITON_BATCH_STRATEGY_PATH]"
        yield Problem(path, "Custom batching libraries are not loaded: the dynamic batcher forms the batches.")


def _warmup(config: ModelConfig) -> Iterator[Problem]:
    for index, sample in enumerate(config.model_warmup):
        if sample.batch_size == 0:
            path = f"model_warmup[{index}].batch_size"
            yield Problem(path, "A sample with a batch size of 0 is not run.", "1 or more")


def _is_cpu_only(config: ModelConfig) -> bool:
    """Whether the author keeps the model off GPUs; without an instance group the server chooses."""
    groups = config.instance_group
    return bool(groups) and all(group.kind == ModelInstanceGroup.KIND_CPU for group in groups)
