"""The form in which a batch prediction job sends an instance, and the label of the instance in the output.

Source: docs/spec/vertex.md section A5 (instanceConfig).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.emulators.vertex.batch_input import InputRecord, InstancesFormat
from core.errors import ConfigInvalid

_KEY, _INSTANCE = "key", "instance"


class InstanceType(StrEnum):
    """The type that records are converted to. With `AS_IS` the platform chooses by the input's format."""

    AS_IS = ""
    ARRAY = "array"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class BatchInstance:
    """`label` is written beside the prediction in the output. `fault`: why the instance is not sent, or ""."""

    value: Any
    label: dict[str, Any]
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig:
    """Names are fields of an object or columns of a table; "" and () for none."""

    instance_type: InstanceType = InstanceType.AS_IS
    key_field: str = ""
    included_fields: tuple[str, ...] = ()
    excluded_fields: tuple[str, ...] = ()

    def check(self, instances_format: InstancesFormat) -> None:
        """Raises ConfigInvalid for options that the platform does not accept together."""
        if self.included_fields and self.excluded_fields:
            raise ConfigInvalid("fields are either included or excluded, not both")
        if instances_format is not InstancesFormat.JSONL:
            if self.instance_type or self.included_fields or self.excluded_fields:
                raise ConfigInvalid(
                    f"an instance type, and fields that are included or excluded, do not apply to {instances_format}"
                )
            if self.key_field and instances_format is InstancesFormat.FILE_LIST:
                raise ConfigInvalid("the files of a list have no key field")

    def instance(self, record: InputRecord, instances_format: InstancesFormat) -> BatchInstance:
        """The instance that is sent for a record."""
        value = record.value
        is_table = instances_format is InstancesFormat.CSV
        label = {_INSTANCE: list(value.values()) if is_table and type(value) is dict else value}
        has_fields = type(value) is dict and instances_format is not InstancesFormat.FILE_LIST
        fault = record.fault or (self._fault_of_fields(value) if has_fields else self._fault_of_plain(value))
        if fault or not has_fields:
            return BatchInstance(value, label, fault)
        sent = self._selected(value)
        return BatchInstance(
            list(sent.values()) if is_table or self.instance_type is InstanceType.ARRAY else sent,
            {_KEY: value[self.key_field]} if self.key_field else label,
        )

    def _fault_of_fields(self, value: dict[str, Any]) -> str:
        for name in (self.key_field, *self.included_fields):
            if name and name not in value:
                return f"the instance has no field '{name}'"
        if self.instance_type is InstanceType.ARRAY and not self.included_fields:
            return "to make an array of an object its fields must be named, in their order"
        return ""

    def _fault_of_plain(self, value: Any) -> str:
        if self.key_field or self.included_fields or self.excluded_fields:
            return "the instance is not an object and has no fields"
        if self.instance_type is InstanceType.OBJECT or (self.instance_type and type(value) is not list):
            return f"the instance cannot be turned into an {self.instance_type}"
        return ""

    def _selected(self, value: dict[str, Any]) -> dict[str, Any]:
        names = self.included_fields or [name for name in value if name not in self.excluded_fields]
        return {name: value[name] for name in names if not self.key_field or name != self.key_field}
