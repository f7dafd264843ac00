"""Batch prediction: the requests that the platform makes of each kind of input file, and the answers it can write.

The platform reads the files; the container gets predict requests only. Source: docs/spec/vertex.md section A5.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.contract.vertex.vertex_container import VertexContainer
from tests.contract.vertex.vertex_models import ROWS, identity_name, serving

pytestmark = pytest.mark.slow

BATCH = 64  # the platform's default number of instances in a request
TABLE = np.arange(1000 * ROWS, dtype=np.float32).reshape(1000, ROWS)
COLUMNS = [f"feature_{n}" for n in range(ROWS)]


@pytest.fixture(scope="module")
def container(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexContainer]:
    with serving(tmp_path_factory) as made:
        yield made


def predict(container: VertexContainer, instances: list[Any], **parameters: Any) -> list[Any]:
    """Send a request for each batch, four at a time. Returns the predictions in the order of the instances."""
    batches = [instances[start : start + BATCH] for start in range(0, len(instances), BATCH)]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda batch: container.predictions(batch, **parameters), batches)
        return [prediction for answer in answers for prediction in answer]


def jsonl(lines: Iterable[Any]) -> list[Any]:
    """The instances of a jsonl file: one for each line."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return [json.loads(line) for line in text.splitlines()]


def csv_rows(header: list[str], rows: Iterable[Iterable[Any]]) -> list[list[Any]]:
    """The instances of a csv file: a row is an array, and a value without quotes is a number."""
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(header)
    writer.writerows(rows)
    file.seek(0)
    return list(csv.reader(file, quoting=csv.QUOTE_NONNUMERIC))[1:]


def file_list(contents: Iterable[bytes]) -> list[dict[str, str]]:
    """The instances of a file list or a TFRecord file."""
    return [{"b64": base64.b64encode(content).decode()} for content in contents]


def test_jsonl_lines_may_be_arrays(container: VertexContainer) -> None:
    assert np.array_equal(predict(container, jsonl(TABLE.tolist())), TABLE)


def test_jsonl_lines_may_be_objects(container: VertexContainer) -> None:
    assert np.array_equal(predict(container, jsonl({"INPUT0": row} for row in TABLE.tolist())), TABLE)


def test_key_beside_the_inputs_is_ignored(container: VertexContainer) -> None:
    """The platform strips the key field only if the job names it."""
    lines = jsonl({"key": f"id-{n}", "INPUT0": row} for n, row in enumerate(TABLE.tolist()))
    assert np.array_equal(predict(container, lines), TABLE)


def test_csv_rows_are_arrays_in_the_order_of_the_columns(container: VertexContainer) -> None:
    assert np.array_equal(predict(container, csv_rows(COLUMNS, TABLE.tolist())), TABLE)


def test_csv_rows_may_have_text(container: VertexContainer) -> None:
    rows = csv_rows(["a", "b", "c"], [["x", "y, z", 'q"r'], ["", "é", "\n"]])
    assert predict(container, rows, model=identity_name("BYTES")) == [["x", "y, z", 'q"r'], ["", "é", "\n"]]


def test_csv_numbers_are_doubles_even_for_a_model_of_integers(container: VertexContainer) -> None:
    rows = csv_rows(["a", "b", "c"], [[1, 2, 3], [-4, 5, 6]])
    assert rows == [[1.0, 2.0, 3.0], [-4.0, 5.0, 6.0]]
    assert predict(container, rows, model=identity_name("INT32")) == [[1, 2, 3], [-4, 5, 6]]


def test_table_rows_are_objects(container: VertexContainer) -> None:
    """BigQuery and `instanceType: object` send a member for each column."""
    table = [{"INPUT0": [n] * 4, "INPUT1": [1] * 4} for n in range(200)]
    answered = predict(container, table, model="add_sub")
    assert answered == [{"OUTPUT0": [n + 1] * 4, "OUTPUT1": [n - 1] * 4} for n in range(200)]


def test_files_are_strings_for_a_model_that_takes_strings(container: VertexContainer) -> None:
    contents = [b"text", b"\x89PNG\r\n\x1a\n\x00", b"", bytes(range(256))]
    answered = predict(container, file_list(contents) * 40, model="text")
    assert answered == [["text"], [file_list(contents[1:2])[0]], [""], [file_list(contents[3:])[0]]] * 40


def test_files_are_raw_numbers_for_a_model_that_takes_numbers(container: VertexContainer) -> None:
    assert np.array_equal(predict(container, file_list(row.astype("<f4").tobytes() for row in TABLE)), TABLE)


def test_files_may_have_a_name(container: VertexContainer) -> None:
    instances = [{"INPUT0": content} for content in file_list([b"a", b"b"])]
    assert predict(container, instances, model="text") == [["a"], ["b"]]


def test_jobs_parameters_are_in_each_request(container: VertexContainer) -> None:
    assert (
        predict(container, jsonl([[1.0, 2.0, 3.0, 4.0]] * 200), model="versions", version=1) == [[10, 20, 30, 40]] * 200
    )


@pytest.mark.parametrize("at", [0, 63])
def test_wrong_record_fails_its_request_and_is_named(container: VertexContainer, at: int) -> None:
    """The job writes such a request to its errors file and continues."""
    rows: list[Any] = TABLE[:BATCH].tolist()
    rows[at] = rows[at][:-1]
    answer = container.post({"instances": rows})
    assert answer.status == 400
    assert answer.error == f"instance {at}, input 'INPUT0': expected a list of 30, got one of 29"
    assert np.array_equal(container.predictions(TABLE[BATCH : 2 * BATCH].tolist()), TABLE[BATCH : 2 * BATCH])


def test_missing_number_is_a_string(container: VertexContainer) -> None:
    """The convention of the platform's containers for tables."""
    row = ["NaN", *TABLE[0].tolist()[1:]]
    assert predict(container, jsonl([row])) == [row]


def test_every_prediction_can_be_a_line(container: VertexContainer) -> None:
    for instances, model in (([["a\nb"]], "text"), ([["NaN"]], "single"), ([file_list([b"\xff"])[0]], "text")):
        (prediction,) = predict(container, instances, model=model)
        line = json.dumps({"instance": instances[0], "prediction": prediction}, allow_nan=False)
        assert "\n" not in line
