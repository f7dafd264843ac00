"""The defaults that Triton fills into a configuration and shows in its config API.

Source: docs/spec/model-config.md sections 2.2 (normalisation) and 2.5.
"""

from __future__ import annotations

from collections.abc import Collection

from core.config.instance_groups import GpuIds, normalize_instance_groups
from core.config.platforms import fill_platform, is_ensemble
from core.config.schema import ModelConfig

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
    _normalize_batching(config)
    if not is_ensemble(config):
        optimization = config.optimization
        if not optimization.HasField("input_pinned_memory"):
            optimization.input_pinned_memory.enable = True
        if not optimization.HasField("output_pinned_memory"):
            optimization.output_pinned_memory.enable = True
    normalize_instance_groups(config, gpu_ids)


def _normalize_batching(config: ModelConfig) -> None:
    batcher = None
    if config.HasField("dynamic_batching"):
        batcher = config.dynamic_batching
    elif config.HasField("sequence_batching"):
        sequence = config.sequence_batching
        sequence.max_sequence_idle_microseconds = sequence.max_sequence_idle_microseconds or _SEQUENCE_IDLE_US
        if sequence.HasField("oldest"):
            batcher = sequence.oldest
    if batcher is not None and not batcher.preferred_batch_size and config.max_batch_size > 0:
        batcher.preferred_batch_size.append(config.max_batch_size)
