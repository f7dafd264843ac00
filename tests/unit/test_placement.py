"""Instance groups, expanded to instances."""

from __future__ import annotations

from google.protobuf import text_format

from core.config.placement import Placement, placements
from core.config.schema import ModelConfig


def test_every_count_and_gpu_is_an_instance() -> None:
    config = text_format.Parse(
        'instance_group [ { name: "a" kind: KIND_CPU count: 2 }, { name: "b" kind: KIND_GPU count: 2 gpus: [ 0, 1 ] },'
        ' { name: "c" kind: KIND_MODEL count: 1 }, { name: "d" kind: KIND_CPU count: 5 passive: true } ]',
        ModelConfig(),
    )
    assert placements(config) == (
        Placement("a_0", "CPU"),
        Placement("a_1", "CPU"),
        Placement("b_0", "GPU", 0),
        Placement("b_0", "GPU", 1),
        Placement("b_1", "GPU", 0),
        Placement("b_1", "GPU", 1),
        Placement("c_0", "CPU"),
    )


def test_devices_have_names() -> None:
    assert Placement("m_0", "CPU").device == "cpu"
    assert Placement("m_0", "GPU", 3).device == "gpu:3"
