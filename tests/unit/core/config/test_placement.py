"""Instance groups expanded to one placement per instance."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf import text_format

from trident.core.config.placement import DeviceKind, Placement, placement_changes, placements
from trident.core.config.schema import ModelConfig


def test_each_count_and_gpu_gives_an_instance() -> None:
    config = text_format.Parse(
        'instance_group [ { name: "a" kind: KIND_CPU count: 2 }, { name: "b" kind: KIND_GPU count: 2 gpus: [ 0, 1 ] },'
        ' { name: "c" kind: KIND_MODEL count: 1 }, { name: "d" kind: KIND_CPU count: 5 passive: true } ]',
        ModelConfig(),
    )
    assert placements(config) == (
        Placement("a_0", DeviceKind.CPU),
        Placement("a_1", DeviceKind.CPU),
        Placement("b_0", DeviceKind.GPU, 0),
        Placement("b_0", DeviceKind.GPU, 1),
        Placement("b_1", DeviceKind.GPU, 0),
        Placement("b_1", DeviceKind.GPU, 1),
        Placement("c_0", DeviceKind.CPU),
    )


def test_device_has_a_name() -> None:
    assert Placement("m_0", DeviceKind.CPU).device == "cpu"
    assert Placement("m_0", DeviceKind.GPU, 3).device == "gpu:3"


def placed(text: str, name: str = "m") -> list[Placement]:
    """Placements from a text: `c` is an instance on the CPU, a digit an instance on that GPU."""
    return [
        Placement(f"{name}_{number}", DeviceKind.CPU)
        if device == "c"
        else Placement(f"{name}_{number}", DeviceKind.GPU, int(device))
        for number, device in enumerate(text)
    ]


@pytest.mark.parametrize(
    ("current", "wanted", "removed", "added"),
    [
        ("", "", [], ""),
        ("cc", "cc", [], ""),
        ("cc", "cccc", [], "cc"),
        ("cccc", "cc", [3, 2], ""),
        ("c0", "0c", [], ""),
        ("c0c1c0", "c1", [5, 4, 2, 1], ""),
        ("cc", "00", [1, 0], "00"),
        ("c01", "c0023", [2], "023"),
        ("0", "c", [0], "c"),
    ],
)
def test_changes_compare_kind_and_device(current: str, wanted: str, removed: list[int], added: str) -> None:
    before = placed(current)
    indices, additions = placement_changes(before, placed(wanted, "another"))
    assert indices == removed
    assert [placement.device for placement in additions] == [placement.device for placement in placed(added)]
    for index in indices:
        del before[index]
    assert sorted(p.device for p in before + additions) == sorted(p.device for p in placed(wanted))


def test_an_instance_with_other_profiles_is_made_anew() -> None:
    before = placed("00")
    after = [replace(before[0], profiles=("1",)), before[1]]
    assert placement_changes(before, after) == ([1], [after[0]])


def test_changes_add_the_last_instances_of_a_device() -> None:
    three = placed("ccc")
    assert placement_changes(three[:1], three) == ([], three[1:])
