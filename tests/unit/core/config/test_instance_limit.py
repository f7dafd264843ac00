from __future__ import annotations

import pytest
from google.protobuf import text_format

from trident.core.config.placement import InstanceLimit, ResourceNeed, instance_limit, placement_changes, placements
from trident.core.config.schema import ModelConfig, ModelInstanceGroup


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", InstanceLimit()),
        ("rate_limiter {}", InstanceLimit()),
        ("rate_limiter { priority: 3 }", InstanceLimit(priority=3)),
        (
            'rate_limiter { resources [ { name: "R" count: 2 }, { name: "S" global: true count: 1 }, { name: "T" } ] }',
            InstanceLimit((ResourceNeed("R", 2, False), ResourceNeed("S", 1, True))),
        ),
    ],
)
def test_the_limit_of_a_group(text: str, expected: InstanceLimit) -> None:
    assert instance_limit(text_format.Parse(text, ModelInstanceGroup())) == expected


def test_another_limit_is_another_instance() -> None:
    text = (
        'instance_group {{ name: "m" kind: KIND_CPU count: 2 rate_limiter {{ resources {{ name: "R" count: {} }} }} }}'
    )
    before, after = (placements(text_format.Parse(text.format(count), ModelConfig())) for count in (1, 2))
    assert placement_changes(before, before) == ([], [])
    assert placement_changes(before, after) == ([1, 0], list(after))
