"""Configurations with sequences."""

from __future__ import annotations

from trident.core.config.autocomplete import normalize
from trident.core.config.schema import ModelConfig, parse_model_config


def sequence_config(sequence_batching: str, more: str = "max_batch_size: 8") -> ModelConfig:
    """As it is written."""
    text = f'name: "m" backend: "stub" {more} sequence_batching {{ {sequence_batching} }}'
    return parse_model_config(text, "config.pbtxt")


def normalized(sequence_batching: str, more: str = "max_batch_size: 8") -> ModelConfig:
    config = sequence_config(sequence_batching, more)
    normalize(config, ())
    return config
