"""Validation of a model configuration: every problem at once, in the order in which Triton checks.

Source: docs/spec/model-config.md sections 2.2 to 2.10.
"""

from __future__ import annotations

import logging

from core.config.instance_groups import GpuIds, instance_group_problems
from core.config.paths import is_plain
from core.config.platforms import platform_problems
from core.config.problem import Problem
from core.config.schema import ModelConfig
from core.config.validation.buckets import bucket_problems
from core.config.validation.counts import bucket_count_problems, count_problems
from core.config.validation.scheduling import scheduling_problems
from core.config.validation.tensors import batch_tensor_problems, tensor_problems
from core.observability.latencies.buckets import DEFAULT_BUCKETS

_log = logging.getLogger("trident.config")

AGENT_KEY = "a key is MD5:<path in the model directory>, such as MD5:1/model.onnx"


def validate_model_config(
    config: ModelConfig,
    model_name: str,
    *,
    gpu_ids: GpuIds = (),
    completed: bool = True,
    layout_hint: str = "",
) -> list[Problem]:
    """Every problem of a normalised `config` of the model in directory `model_name`; empty for a valid one.

    `gpu_ids` are the GPUs that instances may use. With `completed` False it leaves out the checks that need the batch
    size, inputs and outputs from auto-complete; inputs and outputs are then not checked. `layout_hint` says how the
    model's folder differs from that of a model whose backend can be told from its files.
    """
    problems = _identity_problems(config, model_name)
    problems += platform_problems(config, model_name, layout_hint)
    if not config.HasField("version_policy"):
        problems.append(Problem("version_policy", f"must specify 'version policy' for {model_name}"))
    if config.max_batch_size < 0:
        text = f"'max_batch_size' must be non-negative value for {model_name}"
        problems.append(Problem("max_batch_size", text, "0 means a model without a batch dimension"))
    problems += _file_name_problems(config, model_name)
    if completed:
        problems += tensor_problems(config, model_name)
        problems += batch_tensor_problems(config, model_name)
        if not problems:
            problems += bucket_problems(config, model_name) or bucket_count_problems(config)
    problems += scheduling_problems(config, model_name, completed=completed)
    problems += instance_group_problems(config, model_name, gpu_ids)
    problems += count_problems(config)
    problems += _metrics_problems(config)
    problems += agent_problems(config)
    return problems


def _identity_problems(config: ModelConfig, model_name: str) -> list[Problem]:
    if not config.name:
        return [Problem("name", "model configuration must specify 'name'")]
    if config.name != model_name:
        text = f"unexpected directory name '{model_name}' for model '{config.name}', "
        hint = f"remove 'name' from config.pbtxt, or rename the directory to '{config.name}'"
        return [Problem("name", f"{text}directory name must equal model name", hint)]
    return []


def _file_name_problems(config: ModelConfig, model_name: str) -> list[Problem]:
    names = {"default_model_filename": config.default_model_filename}
    names |= {f"cc_model_filenames[{key}]": name for key, name in sorted(config.cc_model_filenames.items())}
    return [
        Problem(path, f"model file name '{name}' must stay within the version directory for {model_name}")
        for path, name in names.items()
        if not is_plain(name)
    ]


def agent_problems(config: ModelConfig) -> list[Problem]:
    """The problems of the repository agents, without those of the files that they name."""
    problems: list[Problem] = []
    for index, agent in enumerate(config.model_repository_agents.agents):
        path = f"model_repository_agents.agents[{index}]"
        if agent.name != "checksum":
            text = f"unable to find repo agent '{agent.name}': only 'checksum' is built in"
            problems.append(Problem(f"{path}.name", text, "remove it if the model's files can be read without it"))
            continue
        for key in sorted(agent.parameters):
            algorithm, colon, _ = key.partition(":")
            if not colon:
                text = f"failed to parse key: {key}"
            elif algorithm.lower() != "md5":
                text = f"Unsupported checksum algorithm: {algorithm}"
            else:
                continue
            problems.append(Problem(f"{path}.parameters[{key}]", text, AGENT_KEY))
    return problems


def _metrics_problems(config: ModelConfig) -> list[Problem]:
    problems: list[Problem] = []
    for index, control in enumerate(config.model_metrics.metric_control):
        path = f"model_metrics.metric_control[{index}]"
        family = control.metric_identifier.family
        if not control.HasField("metric_identifier"):
            problems.append(Problem(path, "metric control must specify 'metric_identifier'"))
        elif not family:
            text = "metric identifier must specify non-empty 'family'"
            problems.append(Problem(f"{path}.metric_identifier", text))
        elif family not in DEFAULT_BUCKETS:
            _log.warning(
                "Metric family '%s' in 'metric_identifier' is not a customizable metric in Triton core.", family
            )
        if not control.HasField("histogram_options"):
            problems.append(Problem(path, "metric control must specify 'histogram_options'"))
        elif not control.histogram_options.buckets:
            text = "histogram options must specify non-empty 'buckets'"
            problems.append(Problem(f"{path}.histogram_options", text))
    return problems
