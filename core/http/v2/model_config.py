"""A model configuration as v2 JSON."""

from __future__ import annotations

from core.config.config_json import Json, config_json
from core.engine.config_message import ConfigMessage


def model_config_json(config: ConfigMessage) -> Json:
    """Plain JSON values in Triton's order, ready for a JSON encoder.

    The first call in a process imports protobuf, see `ConfigMessage.parse`: not for the hub's thread.
    """
    return config_json(config.parse())
