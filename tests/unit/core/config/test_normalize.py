"""Triton's defaults in a configuration."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from trident.core.config.autocomplete import fill_identity, normalize
from trident.core.config.schema import ModelConfig


def normalized(text: str, gpu_ids: tuple[int, ...] = ()) -> ModelConfig:
    config = text_format.Parse(text, ModelConfig())
    fill_identity(config, "m", ["model.onnx"])
    normalize(config, gpu_ids)
    return config


def test_identity_is_filled_from_directory_and_files() -> None:
    config = normalized("")
    assert (config.name, config.platform, config.backend) == ("m", "onnxruntime_onnx", "onnxruntime")
    assert normalized('name: "other"').name == "other"


@pytest.mark.parametrize("text", ["", "version_policy { latest {} }"])
def test_latest_version_is_the_default_policy(text: str) -> None:
    assert normalized(text).version_policy.latest.num_versions == 1


def test_given_version_policy_stays() -> None:
    assert normalized("version_policy { latest { num_versions: 3 } }").version_policy.latest.num_versions == 3
    assert normalized("version_policy { all {} }").version_policy.WhichOneof("policy_choice") == "all"


def test_preferred_batch_size_defaults_to_the_largest() -> None:
    assert list(normalized("max_batch_size: 8 dynamic_batching {}").dynamic_batching.preferred_batch_size) == [8]
    assert list(normalized("dynamic_batching {}").dynamic_batching.preferred_batch_size) == []
    given = normalized("max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2, 4 ] }")
    assert list(given.dynamic_batching.preferred_batch_size) == [2, 4]


def test_sequence_batching_gets_the_default_idle_time() -> None:
    sequence = normalized("max_batch_size: 4 sequence_batching { oldest {} }").sequence_batching
    assert sequence.max_sequence_idle_microseconds == 1_000_000
    assert list(sequence.oldest.preferred_batch_size) == [4]
    assert normalized("sequence_batching {}").sequence_batching.max_sequence_idle_microseconds == 1_000_000


def test_pinned_memory_is_enabled_by_default() -> None:
    optimization = normalized("optimization { input_pinned_memory {} }").optimization
    assert not optimization.input_pinned_memory.enable
    assert optimization.output_pinned_memory.enable
    assert not normalized('platform: "ensemble"').HasField("optimization")


def test_second_normalisation_changes_nothing() -> None:
    config = normalized("max_batch_size: 2 dynamic_batching {}", gpu_ids=(0,))
    once = config.SerializeToString(deterministic=True)
    normalize(config, (0,))
    assert config.SerializeToString(deterministic=True) == once
