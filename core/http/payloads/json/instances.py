"""Decodes a list of instances, given as JSON values.

An instance is the value of the only input, or an object with a value by input name.
Source: docs/spec/vertex.md section D points 2 and 3.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from core.config.json_fields import shown
from core.config.model_spec import InputSpec, ModelSpec
from core.errors import InvalidRequest
from core.http.payloads.error_location import ErrorLocation, RowName, mismatch
from core.http.payloads.instance_signature import InstanceSignature, check_names, instance_signature
from core.http.payloads.json.values import column_array, is_b64, rank_of
from core.http.payloads.payload import DecodedPayload, DecodeRules
from core.inference.tensors import Array

_Row = dict[str, Any]


def decode_instances(instances: list[Any], spec: ModelSpec, rules: DecodeRules, row_name: RowName) -> DecodedPayload:
    """Decode instances. Raises InvalidRequest that names the input, and the instance by `row_name`."""
    if not instances:
        raise InvalidRequest("there are no instances: expected at least one")
    columns = _columns(instances, spec, rules, row_name)
    first_name = next(iter(columns))
    signature = instance_signature(spec, _rank_at(columns[first_name][0], spec.inputs[first_name]))
    payload = DecodedPayload(arrays={}, count=len(instances), stacked=signature.stacked)
    try:
        payload.arrays = _arrays(columns, signature, row_name)
    except InvalidRequest:
        # Instances that are run one by one may have different shapes; an error within an instance is raised again.
        if signature.stacked or not any(-1 in expected.dims for expected in signature.inputs.values()):
            raise
        payload.rows = [_row_arrays(columns, signature, row_name, index) for index in range(len(instances))]
    return payload


def _arrays(columns: dict[str, list[Any]], signature: InstanceSignature, row_name: RowName) -> dict[str, Array]:
    return {
        name: column_array(values, signature.inputs[name], ErrorLocation(row_name, name))
        for name, values in columns.items()
    }


def _row_arrays(
    columns: dict[str, list[Any]], signature: InstanceSignature, row_name: RowName, index: int
) -> dict[str, Array]:
    own = {name: [values[index]] for name, values in columns.items()}
    arrays = _arrays(own, signature, lambda _: row_name(index))
    return {name: array.reshape(array.shape[1:]) for name, array in arrays.items()}


def _rank_at(value: Any, expected: InputSpec) -> int:
    # Raw bytes have no nesting; their rank is that of the dims.
    return len(expected.dims) if is_b64(value) and expected.datatype.size else rank_of(value)


def _columns(instances: list[Any], spec: ModelSpec, rules: DecodeRules, row_name: RowName) -> dict[str, list[Any]]:
    """The values of each given input, in the order of the instances."""
    if dict in set(map(type, instances)) and any(_is_named(value, spec) for value in instances):
        if not all(_is_named(value, spec) for value in instances):
            index = next(i for i, value in enumerate(instances) if not _is_named(value, spec))
            got = shown(instances[index])
            raise mismatch(row_name(index), "an object with a value by input name, like the others", got)
        return _named_columns(instances, spec, rules, row_name)
    if len(spec.inputs) != 1:
        names = ", ".join(f"'{name}'" for name in spec.inputs)
        raise mismatch(row_name(0), f"an object with the inputs {names}", shown(instances[0]))
    return {next(iter(spec.inputs)): instances}


def _is_named(value: Any, spec: ModelSpec) -> bool:
    return type(value) is dict and ("b64" in spec.inputs or len(spec.inputs) != 1 or not is_b64(value))


def _named_columns(rows: list[_Row], spec: ModelSpec, rules: DecodeRules, row_name: RowName) -> dict[str, list[Any]]:
    ignored = rules.ignored_fields - spec.inputs.keys()
    if ignored and not all(map(ignored.isdisjoint, rows)):
        rows = [{name: value for name, value in row.items() if name not in ignored} for row in rows]
    names = tuple(rows[0])
    check_names(names, spec, row_name(0))
    if set(map(len, rows)) == {len(names)}:
        try:
            if len(names) == 1:
                return {names[0]: [row[names[0]] for row in rows]}
            columns = zip(*map(itemgetter(*names), rows), strict=True)
            return {name: list(column) for name, column in zip(names, columns, strict=True)}
        except KeyError:
            pass
    raise _different_names(rows, spec, row_name)


def _different_names(rows: list[_Row], spec: ModelSpec, row_name: RowName) -> InvalidRequest:
    """The error for the first row whose inputs differ from the first row's."""
    index = next(i for i, row in enumerate(rows) if row.keys() != rows[0].keys())
    check_names(rows[index], spec, row_name(index))
    name = sorted(rows[index].keys() ^ rows[0].keys())[0]
    having, lacking = (index, 0) if name in rows[index] else (0, index)
    return InvalidRequest(
        f"{row_name(index)}: all instances must have the same inputs, but {row_name(having)} has '{name}' and "
        f"{row_name(lacking)} has not"
    )
