"""A batch prediction job in front of a scripted container."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.app.emulators.scripted_container import Answer, Call, ScriptedContainer
from trident.app.emulators.container import ContainerClient
from trident.app.emulators.report import BreachReport
from trident.app.emulators.vertex.batch import BatchCounts, BatchJob, BatchOptions, InstanceConfig, InstancesFormat
from trident.app.emulators.vertex.endpoint import Endpoint
from trident.app.emulators.vertex.limits import Deployment, batch_limits
from trident.core.errors import ConfigInvalid


def doubled(call: Call) -> Answer:
    return Answer(body=json.dumps({"predictions": [2 * each for each in json.loads(call.body)["instances"]]}).encode())


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
            return BatchJob(BatchOptions(**chosen), endpoint).run(is_stopped)

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


def test_every_instance_gets_a_prediction(tmp_path: Path) -> None:
    job = Job(tmp_path, list(range(5)))
    assert job.run(batch_size=2) == BatchCounts(predicted=5, failed=0, is_whole=True)
    assert job.requests == [{"instances": [0, 1]}, {"instances": [2, 3]}, {"instances": [4]}]
    assert job.predictions == [{"instance": each, "prediction": 2 * each} for each in range(5)]
    assert [path.name for path in job.output.iterdir()] == ["predictions_0001.jsonl"]


def test_a_request_has_64_instances_and_the_models_parameters(tmp_path: Path) -> None:
    job = Job(tmp_path, list(range(65)))
    job.run(parameters={"a": 1})
    assert [len(request["instances"]) for request in job.requests] == [64, 1]
    assert all(request["parameters"] == {"a": 1} for request in job.requests)


def test_a_key_replaces_the_instance_in_the_output(tmp_path: Path) -> None:
    def answer(call: Call) -> Answer:
        return Answer(body=b'{"predictions": [{"x": 1}]}')

    job = Job(tmp_path, [{"id": 7, "a": 1}], answer)
    job.run(config=InstanceConfig(key_field="id"))
    assert job.requests == [{"instances": [{"a": 1}]}]
    assert job.predictions == [{"key": 7, "prediction": {"x": 1}}]


def test_a_failed_request_fails_only_its_own_instances(tmp_path: Path) -> None:
    def answer(call: Call) -> Answer:
        return Answer(422, b"bad 2") if 2 in json.loads(call.body)["instances"] else doubled(call)

    job = Job(tmp_path, list(range(6)), answer)
    assert job.run(batch_size=2) == BatchCounts(predicted=4, failed=2, is_whole=True)
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


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    job = Job(tmp_path, [1])
    with pytest.raises(ConfigInvalid, match="cannot be created"):
        job.run(output=job.input)


def test_invalid_options_are_refused_before_the_start(tmp_path: Path) -> None:
    def checked(name: str, **config: Any) -> None:
        options = BatchOptions(
            input=tmp_path / name,
            output=tmp_path,
            instances_format=InstancesFormat.CSV,
            config=InstanceConfig(**config),
        )
        options.check()

    (tmp_path / "in.csv").write_text("a")
    checked("in.csv")
    with pytest.raises(ConfigInvalid, match="is not a file"):
        checked("nothing")
    with pytest.raises(ConfigInvalid, match="do not apply to csv"):
        checked("in.csv", included_fields=("a",))
