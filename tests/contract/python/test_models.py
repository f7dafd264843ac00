"""Model files as Triton's documentation teaches them, on a real server: `models` has one folder for each.

Source: docs/spec/python-backend.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.contract.servers.server import ServerProcess
from tests.contract.servers.session import resident_kb
from tests.waiting import until

pytestmark = pytest.mark.slow

MODELS = Path(__file__).with_name("models")


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(MODELS, tmp_path_factory.mktemp("server") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with triton_http.InferenceServerClient(server.address, network_timeout=60) as made:
        yield made


def tensor(name: str, array: Any, datatype: str) -> triton_http.InferInput:
    made = triton_http.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def text(name: str, value: str) -> triton_http.InferInput:
    return tensor(name, np.array([value], np.object_), "BYTES")


def test_coroutines_of_a_decoupled_model_overlap(server: ServerProcess) -> None:
    def numbers(count: int) -> list[int]:
        body = json.dumps({"IN": count}).encode()
        events = server.request("POST", "/v2/models/async_repeat/generate_stream", body)[2].split(b"\n\n")
        return [json.loads(event.removeprefix(b"data: "))["OUT"] for event in events if event]

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(numbers, 0)

        def is_ended_by_another_one() -> bool:
            assert numbers(2) == [0, 1]
            return waiting.done()

        # The first request may arrive after the second one.
        until(is_ended_by_another_one, "no execution ended the first one")
        assert waiting.result() == []


@pytest.mark.shapes("one-process", "front-ends")
def test_idle_model_frees_its_shared_memory(http_workers: str, tmp_path: Path) -> None:
    size, count = 16 << 20, 6
    values = np.arange(size, dtype=np.int64).astype(np.int8)
    with ServerProcess(MODELS, tmp_path / "log", "--model-control-mode=explicit", "--load-model=mirror") as server:
        before = resident_kb(server.process, "RssShmem")

        def is_mirrored(_: int) -> bool:
            with triton_http.InferenceServerClient(server.address, network_timeout=60) as client:
                answer = client.infer("mirror", [tensor("IN", values, "INT8")])
                return bool((answer.as_numpy("OUT") == values).all())

        with ThreadPoolExecutor(count) as threads:
            assert all(threads.map(is_mirrored, range(count)))
        # The model may still refer to the input of its last request.
        until(
            lambda: resident_kb(server.process, "RssShmem") - before < 3 * size >> 10,
            lambda: f"{resident_kb(server.process, 'RssShmem') - before} KB",
        )
        assert is_mirrored(0)


def test_endless_model_is_cancelled_by_the_model_that_asked_it(client: Any) -> None:
    assert client.infer("asking", [tensor("IN", np.array([-1], np.int32), "INT32")]).as_numpy("OUT").tolist() == [0]


def test_request_has_all_fields(client: Any) -> None:
    result = client.infer(
        "mirror",
        [tensor("IN", np.array([1, 2], np.int8), "INT8")],
        request_id="r",
        sequence_id=7,
        sequence_start=True,
        timeout=5_000_000,
        parameters={"custom": "value", "number": 3},
    )
    seen = json.loads(result.as_numpy("REQUEST")[0])
    assert seen["parameters"] == {"custom": "value", "number": 3}
    del seen["parameters"]
    assert seen == {
        "id": "r",
        "correlation id": 7,
        "flags": 1,
        "timeout": 5_000_000,
        "outputs": ["OUT", "REQUEST"],
        "is cancelled": False,
        "directory": str(MODELS / "mirror" / "1"),
    }
    response = result.get_response()
    assert [output["name"] for output in response["outputs"]] == ["OUT", "REQUEST"]
    assert response["parameters"] == {"bool": True, "int": 7, "str": "text"}


def case(client: Any, name: str) -> Any:
    return client.infer("cases", [text("CASE", name)])


def test_exception_of_a_model_names_file_and_line(client: Any) -> None:
    file = MODELS / "cases" / "1" / "model.py"
    lines = file.read_text().split("\n")
    execute, raises = (
        next(at for at, text in enumerate(lines, 1) if each in text) for each in ("getattr", "ValueError")
    )
    with pytest.raises(InferenceServerException) as caught:
        case(client, "raises")
    assert caught.value.message() == (
        "Failed to process the request(s) for model 'cases_0_0', message: ValueError: why\n\nAt:\n"
        f"  {file}({raises}): raises\n  {file}({execute}): execute\n"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("has_no_arguments", [0, 1, 2, 3]),
        ("writes_its_input", [0, 1, 2, 3]),
        ("forks", [7, 8, 9, 10]),
        ("leaves_a_child", [0, 1, 2, 3]),
        ("returns_in_a_child", [0, 1, 2, 3]),
        ("logs_in_a_child", [5, 6, 7, 8]),
        ("runs_a_program", [3, 4, 5, 6]),
    ],
)
def test_model_with_unusual_code_is_served(client: Any, name: str, expected: list[Any]) -> None:
    assert case(client, name).as_numpy("OUT").tolist() == expected


def test_unconfigured_outputs_are_errors_in_strict_mode(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "cases").symlink_to(MODELS / "cases")
    with (
        ServerProcess(tmp_path / "models", tmp_path / "log", "--strict-python-outputs") as strict,
        triton_http.InferenceServerClient(strict.address) as client,
    ):
        with pytest.raises(InferenceServerException, match=r"configuration says INT32 \(--strict-python-outputs"):
            case(client, "wrong_dtype")
        assert case(client, "fine").as_numpy("OUT").tolist() == [0, 1, 2, 3]


def test_huge_output_is_answered(client: Any) -> None:
    assert case(client, "huge").as_numpy("OUT").sum() == 100_000_000


def test_model_output_is_logged(server: ServerProcess, client: Any) -> None:
    case(client, "prints")
    line = (MODELS / "cases" / "1" / "model.py").read_text()[:-1].split('log_warn("logged')[0].count("\n") + 1
    for expected in (f"model.py:{line}]", "logged by the model", "printed by the model", "printed to stderr"):
        until(lambda expected=expected: expected in server.log_text(), server.log_text)
