"""Batch prediction: its input, its instances, and the job."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tools.emulators.scripted_container import Answer, Call, ScriptedContainer
from trident.core.errors import ConfigInvalid
from trident.tools.emulators.container import BreachReport, ContainerClient
from trident.tools.emulators.vertex.batch import (
    BatchCounts,
    BatchInstance,
    BatchOptions,
    InputRecord,
    InstanceConfig,
    InstancesFormat,
    InstanceType,
    format_of,
    read_records,
    run_batch_job,
)
from trident.tools.emulators.vertex.endpoint import Deployment, Endpoint, batch_limits


def read(folder: Path, name: str, content: str | bytes) -> list[InputRecord]:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_records(path, format_of(path)))


def values(records: list[InputRecord]) -> list[Any]:
    assert not any(record.fault for record in records)
    return [record.value for record in records]


def test_a_line_of_json_is_an_instance(tmp_path: Path) -> None:
    found = read(tmp_path, "a.jsonl", '[1, 2]\n\n{"a": "b"}\r\n3')
    assert values(found) == [[1, 2], {"a": "b"}, 3]


def test_a_row_has_the_headers_names_with_quoted_text_and_plain_numbers(tmp_path: Path) -> None:
    found = read(tmp_path, "a.csv", 'x,"y z",w\n1,"1",-2.5e3\n\n"a ""b""\nc",0,"d,e"\n')
    assert values(found) == [{"x": 1.0, "y z": "1", "w": -2500.0}, {"x": 'a "b"\nc', "y z": 0.0, "w": "d,e"}]
    assert type(found[0].value["x"]) is float


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("1,abc", "line 3: could not convert"),
        ("1,nan", "line 3 has a number that JSON does not have"),
        ("1,1e999", "line 3 has a number that JSON does not have"),
        ("1", "line 3 has 1 fields, and there are 2 columns"),
        ("1,2,3", "line 3 has 3 fields, and there are 2 columns"),
    ],
)
def test_a_malformed_row_does_not_stop_the_others(row: str, text: str, tmp_path: Path) -> None:
    first, bad, last = read(tmp_path, "a.csv", f"a,b\n1,2\n{row}\n3,4\n")
    assert (first.value, last.value) == ({"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 4.0})
    assert bad.fault.startswith(text)


@pytest.mark.parametrize(("content", "text"), [("", "is empty"), ("a,a\n1,2\n", "two columns of one name")])
def test_a_table_without_valid_names_is_refused(content: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=text):
        read(tmp_path, "a.csv", content)


def test_a_file_in_a_list_becomes_its_content(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "one").write_bytes(b"\x00\xff")
    found = read(tmp_path, "list.txt", f"images/one\n{tmp_path}/images/one\n")
    assert values(found) == [{"b64": base64.b64encode(b"\x00\xff").decode()}] * 2


def test_an_unreadable_file_of_a_list_is_a_fault(tmp_path: Path) -> None:
    found = read(tmp_path, "list.txt", b"nothing\ngs://b/o\n.\n\xff\xfe\n/dev/zero\na\x00b\n")
    assert [record.fault for record in found[:3]] == [
        "there is no such file",
        "gs://b/o is not on this machine; the emulator reads files",
        "there is no such file",
    ]
    assert all(record.fault and isinstance(record.value, str) for record in found)


def test_a_missing_input_is_refused(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.csv", "a"):
        with pytest.raises(ConfigInvalid, match="cannot be read"):
            list(read_records(tmp_path / name, format_of(Path(name))))


ROW = {"id": "k", "a": 1, "b": 2}
ARRAY, OBJECT = InstanceType.ARRAY, InstanceType.OBJECT
JSONL, CSV, FILES = InstancesFormat.JSONL, InstancesFormat.CSV, InstancesFormat.FILE_LIST


def instance(value: Any, instances_format: InstancesFormat = JSONL, **config: Any) -> BatchInstance:
    return InstanceConfig(**config).instance(InputRecord(value), instances_format)


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


def doubled(call: Call) -> Answer:
    return Answer(body=json.dumps({"predictions": [2 * each for each in json.loads(call.body)["instances"]]}).encode())


def test_a_request_has_64_instances_and_the_models_parameters(tmp_path: Path) -> None:
    job = Job(tmp_path, list(range(65)))
    job.run(parameters={"a": 1})
    assert [len(request["instances"]) for request in job.requests] == [64, 1]
    assert all(request["parameters"] == {"a": 1} for request in job.requests)


class Job:
    def __init__(self, folder: Path, lines: list[Any], answer: Callable[[Call], Answer] = doubled) -> None:
        self.input = folder / "in.jsonl"
        self.output = folder / "some" / "out"
        self.input.write_text("".join(line if type(line) is str else f"{json.dumps(line)}\n" for line in lines))
        self.container = ScriptedContainer(answer)
        self.report = BreachReport()

    def run(self, is_stopped: Callable[[], bool] = lambda: False, **options: Any) -> BatchCounts:
        chosen = {"input": self.input, "output": self.output, "instances_format": InstancesFormat.JSONL, **options}
        limits = batch_limits()
        with self.container:
            client = ContainerClient(self.container.port, limits)
            endpoint = Endpoint(client, Deployment(), limits, self.report, lambda: True)
            return run_batch_job(BatchOptions(**chosen), endpoint, is_stopped)

    def lines(self, name: str) -> list[Any]:
        return [json.loads(line) for line in (self.output / name).read_text().splitlines()]

    @property
    def predictions(self) -> list[Any]:
        return self.lines("predictions_0001.jsonl")

    @property
    def errors(self) -> list[Any]:
        return self.lines("errors_0001.jsonl")

    @property
    def requests(self) -> list[Any]:
        return [json.loads(call.body) for call in self.container.calls]


def test_a_failed_request_fails_only_its_own_instances(tmp_path: Path) -> None:
    def answer(call: Call) -> Answer:
        return Answer(422, b"bad 2") if 2 in json.loads(call.body)["instances"] else doubled(call)

    job = Job(tmp_path, list(range(6)), answer)
    counts = job.run(batch_size=2)
    assert counts == BatchCounts(predicted=4, failed=2, is_whole=True)
    assert counts.text() == "4 instances predicted, 2 failed; the first error: bad 2"
    assert [each["instance"] for each in job.predictions] == [0, 1, 4, 5]
    error = {"code": 9, "message": "Cannot get predictions. bad 2"}
    assert job.errors == [{"instance": each, "error": error} for each in (2, 3)]
    assert job.report.breaches == {}


def test_an_invalid_instance_is_an_error_and_the_others_are_sent(tmp_path: Path) -> None:
    job = Job(tmp_path, [1, "{\n", 2])
    assert job.run() == BatchCounts(predicted=2, failed=1, is_whole=True)
    assert job.requests == [{"instances": [1, 2]}]
    (error,) = job.errors
    assert (error["instance"], error["error"]["code"]) == ("{", 3)


def test_a_wrong_number_of_predictions_fails_the_request(tmp_path: Path) -> None:
    job = Job(tmp_path, [1, 2], lambda call: Answer(body=b'{"predictions": [1]}'))
    assert job.run() == BatchCounts(failed=2, is_whole=True)
    assert "answered 2 instances with 1 predictions" in job.errors[0]["error"]["message"]
    assert len(job.report.breaches) == 1


def test_a_stopped_job_keeps_its_output(tmp_path: Path) -> None:
    job = Job(tmp_path, list(range(10)))
    counts = job.run(lambda: len(job.container.calls) == 2, batch_size=2)
    assert counts == BatchCounts(predicted=4)
    assert "stopped before the end" in counts.text()
    assert len(job.predictions) == 4


def test_another_jobs_output_is_not_overwritten(tmp_path: Path) -> None:
    job = Job(tmp_path, [1])
    job.output.mkdir(parents=True)
    (job.output / "errors_0001.jsonl").write_text("theirs")
    with pytest.raises(ConfigInvalid, match="exists already"):
        job.run()
    assert job.container.calls == []
