from __future__ import annotations

from trident.core.config.schema import ModelConfig
from trident.core.engine.protocol import ConfigMessage


def test_a_message_survives_the_way_to_a_front_end() -> None:
    config = ModelConfig(name="m", max_batch_size=8)
    assert ConfigMessage.of(config).parse() == config
