from __future__ import annotations

from typing import Any

import pytest

from trident.app.emulators.vertex.batch import BatchInstance, InputRecord, InstanceConfig, InstancesFormat, InstanceType
from trident.core.errors import ConfigInvalid

ROW = {"id": "k", "a": 1, "b": 2}
ARRAY, OBJECT = InstanceType.ARRAY, InstanceType.OBJECT
JSONL, CSV, FILES = InstancesFormat.JSONL, InstancesFormat.CSV, InstancesFormat.FILE_LIST


def instance(value: Any, instances_format: InstancesFormat = JSONL, **config: Any) -> BatchInstance:
    return InstanceConfig(**config).instance(InputRecord(value), instances_format)


@pytest.mark.parametrize("value", [1, "a", [1, 2], {"a": [1]}, None])
def test_a_line_is_sent_unchanged(value: Any) -> None:
    assert instance(value) == BatchInstance(value, {"instance": value})


@pytest.mark.parametrize(
    ("config", "sent", "label"),
    [
        ({"key_field": "id"}, {"a": 1, "b": 2}, {"key": "k"}),
        ({"excluded_fields": ("id", "none")}, {"a": 1, "b": 2}, {"instance": ROW}),
        ({"included_fields": ("b", "a")}, {"b": 2, "a": 1}, {"instance": ROW}),
        ({"included_fields": ("b", "a"), "instance_type": ARRAY}, [2, 1], {"instance": ROW}),
        ({"included_fields": ("b", "a"), "instance_type": ARRAY, "key_field": "id"}, [2, 1], {"key": "k"}),
        ({"included_fields": ("id", "a"), "key_field": "id"}, {"a": 1}, {"key": "k"}),
        ({"instance_type": OBJECT}, ROW, {"instance": ROW}),
    ],
)
def test_fields_of_an_object_are_selected(config: dict[str, Any], sent: Any, label: dict[str, Any]) -> None:
    found = instance(ROW, **config)
    assert found == BatchInstance(sent, label)
    assert list(found.value) == list(sent)  # the array has the order of the included fields


def test_a_row_becomes_an_array() -> None:
    assert instance(ROW, CSV) == BatchInstance(["k", 1, 2], {"instance": ["k", 1, 2]})
    assert instance(ROW, CSV, key_field="id") == BatchInstance([1, 2], {"key": "k"})


def test_a_file_has_no_fields() -> None:
    assert instance({"b64": "AA=="}, FILES) == BatchInstance({"b64": "AA=="}, {"instance": {"b64": "AA=="}})


@pytest.mark.parametrize(
    ("value", "config", "text"),
    [
        ({"a": 1}, {"key_field": "id"}, "no field 'id'"),
        ({"a": 1}, {"included_fields": ("b",)}, "no field 'b'"),
        ([1], {"key_field": "id"}, "is not an object"),
        ([1], {"instance_type": OBJECT}, "cannot be turned into an object"),
        (1, {"instance_type": ARRAY}, "cannot be turned into an array"),
        (ROW, {"instance_type": ARRAY}, "fields must be named"),
    ],
)
def test_instances_that_cannot_be_sent_have_a_fault(value: Any, config: dict[str, Any], text: str) -> None:
    found = instance(value, **config)
    assert text in found.fault
    assert found.label == {"instance": value}


def test_a_fault_of_the_record_is_kept() -> None:
    found = InstanceConfig().instance(InputRecord("{", "no JSON"), JSONL)
    assert (found.label, found.fault) == ({"instance": "{"}, "no JSON")


@pytest.mark.parametrize(
    ("config", "instances_format", "text"),
    [
        ({"included_fields": ("a",), "excluded_fields": ("b",)}, JSONL, "not both"),
        ({"instance_type": OBJECT}, CSV, "do not apply to csv"),
        ({"excluded_fields": ("a",)}, FILES, "do not apply to file-list"),
        ({"key_field": "a"}, FILES, "no key field"),
    ],
)
def test_conflicting_options_are_refused(config: dict[str, Any], instances_format: InstancesFormat, text: str) -> None:
    with pytest.raises(ConfigInvalid, match=text):
        InstanceConfig(**config).check(instances_format)
    InstanceConfig(key_field="a").check(CSV)
