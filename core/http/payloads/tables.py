"""Tables in JSON as the scoring servers of MLflow and Azure ML take them, made into instances.

    {"dataframe_split": {"columns": ["a", "b"], "data": [[1, 2], [3, 4]]}}     answered as {"instances": [...]}
    {"dataframe_records": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]}
    {"input_data": {"columns": …, "data": …}}, {"input_data": [[1, 2], [3, 4]]}      answered as a bare list

A table whose columns are inputs of the model gives each its column, as MLflow's flavor for ONNX does; a model with one
input gets the rows. Without names, the elements of all inputs are side by side, as in CSV.
Source: docs/spec/sagemaker.md; MLflow's scoring server; Azure ML's inference server for MLflow models.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from trident.core.config.golden import shown
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.inference.tensors import Buffer

_TABLE = re.compile(rb'\s*\{\s*"(dataframe_split|dataframe_records|input_data)"\s*:')
# `index` names the rows, which no model here reads.
_SPLIT = ("columns", "data", "index")


def table_as_instances(body: Buffer, spec: ModelSpec) -> bytes | None:
    """The JSON with instances for a table in `body`; None for any other body. Raises InvalidRequest."""
    found = _TABLE.match(body)
    if found is None:
        return None
    name = found[1].decode()
    try:
        document = orjson.loads(body)
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if others := [other for other in document if other != name]:
        raise InvalidRequest(f"'{others[0][:60]}' is not supported beside '{name}'")
    columns, rows = _table(name, document[name])
    needed = [each.name for each in spec.inputs.values() if not each.optional] or list(spec.inputs)
    takes_rows = not columns and len(needed) == 1  # whatever they are
    for at, row in enumerate(rows):
        if not takes_rows and (not isinstance(row, list) or (columns and len(row) != len(columns))):
            expected = f"a list of {len(columns)} values, one for each column" if columns else "a list of values"
            raise InvalidRequest(f"row {at} of '{name}': expected {expected}, got {shown(row)}")
    instances: list[Any]
    if columns and spec.inputs.keys() >= set(columns) >= set(needed):
        instances = [dict(zip(columns, row, strict=True)) for row in rows]
    elif len(needed) == 1:
        instances = [{needed[0]: row} for row in rows]
    elif not columns:
        instances = rows  # the elements of all inputs side by side
    else:
        named = ", ".join(map(repr, columns[:10]))
        raise InvalidRequest(
            f"the columns of '{name}' are {named}, and model '{spec.name}' needs the inputs "
            f"{', '.join(map(repr, needed))}",
            hint="name the columns as the inputs",
        )
    return orjson.dumps(instances if name == "input_data" else {"instances": instances})


def _table(name: str, content: Any) -> tuple[list[str], list[Any]]:
    """The names of the columns, none if they have none, and the rows."""
    if name == "dataframe_records":
        if not isinstance(content, list) or not content or not all(isinstance(row, dict) for row in content):
            raise InvalidRequest(f"'{name}': expected a list of objects, got {shown(content)}")
        columns = list(content[0])
        for at, row in enumerate(content):
            if row.keys() != content[0].keys():
                raise InvalidRequest(f"row {at} of '{name}' has other columns than row 0")
        return columns, [[row[column] for column in columns] for row in content]
    if name == "input_data" and isinstance(content, list):
        content = {"data": content}
    if not isinstance(content, dict) or not isinstance(content.get("data"), list) or not content["data"]:
        raise InvalidRequest(f"'{name}': expected an object with 'columns' and 'data', a list of rows")
    for member in content:
        if member not in _SPLIT:
            raise InvalidRequest(f"'{name}' has '{member[:60]}', known are {', '.join(_SPLIT)}")
    columns = content.get("columns") or []
    if not isinstance(columns, list) or not all(isinstance(each, str) for each in columns):
        raise InvalidRequest(f"'columns' of '{name}': expected a list of names")
    return columns, content["data"]
