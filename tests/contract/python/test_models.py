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
FAILED = "Failed to process the request(s) for model 'cases_0_0', message: "


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


def ask(client: Any, how: str, model: str, value: float = 3, asker: str = "bls") -> Any:
    values = np.full(4, value, np.float32)
    return client.infer(asker, [text("HOW", how), text("MODEL", model), tensor("IN", values, "FP32")])


@pytest.mark.parametrize(
    ("asker", "how"), [("bls", "sync"), ("bls", "async"), ("bls_async", "exec"), ("bls_async", "await")]
)
def test_model_sends_a_request_to_another_model(client: Any, asker: str, how: str) -> None:
    result = ask(client, how, "add_sub", asker=asker)
    assert result.as_numpy("OUTPUT0").tolist() == [[6] * 4]
    assert result.as_numpy("OUTPUT1").tolist() == [[0] * 4]


@pytest.mark.parametrize("how", ["count", "count async"])
@pytest.mark.parametrize("model", ["repeat", "async_repeat"])
def test_model_sends_a_request_to_a_decoupled_model(client: Any, how: str, model: str) -> None:
    result = ask(client, how, model, 100)
    assert result.as_numpy("OUTPUT0").tolist() == [*range(100)]


def test_endless_model_is_cancelled(client: Any) -> None:
    assert ask(client, "cancel", "repeat").as_numpy("OUTPUT0").tolist() == [0]


@pytest.mark.parametrize(
    ("how", "model", "reason"),
    [
        ("sync", "no_such_model", "Request for unknown model: 'no_such_model' is not found"),
        ("async", "cases", "unexpected inference output 'OUTPUT0' for model 'cases'"),
        ("count", "no_such_model", "Request for unknown model: 'no_such_model' is not found"),
    ],
)
def test_request_to_another_model_that_fails_has_its_reason(client: Any, how: str, model: str, reason: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        ask(client, how, model)
    message = caught.value.message()
    assert message.startswith(f"Model {model} - Error when running inference: ")
    assert message.endswith(reason)


def test_decoupled_model_needs_a_decoupled_request(client: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        ask(client, "async", "repeat")
    assert "Model repeat is using the decoupled." in caught.value.message()


def test_configuration_completes_itself(client: Any) -> None:
    config = client.get_model_config("auto_complete")
    assert config["max_batch_size"] == 4
    assert "dynamic_batching" in config
    assert [(tensor["name"], tensor["optional"]) for tensor in config["input"]] == [("IN", False), ("OPTIONAL", True)]
    values = np.array([[1, 2]], np.int64)
    assert client.infer("auto_complete", [tensor("IN", values, "INT64")]).as_numpy("OUT").tolist() == [[1, 2]]
    both = [tensor("IN", values, "INT64"), tensor("OPTIONAL", values, "INT64")]
    assert client.infer("auto_complete", both).as_numpy("OUT").tolist() == [[1, 4]]


def test_custom_metrics(server: ServerProcess, client: Any) -> None:
    for value in (0.5, 4.0):
        result = client.infer("custom_metrics", [tensor("IN", np.array([value]), "FP64")])
        assert result.as_numpy("OUT").tolist() == [value]
    labels = '{model="custom_metrics",version="1"'
    lines = server.request("GET", "/metrics", port=server.metrics_port)[2].decode().split("\n")
    assert f"seen_total{labels}}} 4.5" in lines
    assert f"seen_last{labels}}} 4" in lines or f"seen_last{labels}}} 4.0" in lines
    assert any(
        line.startswith(f'seen_values_bucket{labels},le="1') and line.endswith(("} 1", "} 1.0")) for line in lines
    )
    assert "temporary" not in "\n".join(lines)


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


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", FAILED + "ValueError: why\n\nAt:\n  {file}({line}): raises\n  {file}(17): execute\n"),
        ("exits", FAILED + "SystemExit: 1\n\nAt:\n  {file}({line}): exits\n  {file}(17): execute\n"),
        ("error_with_code", "gone"),
        ("too_large", "Tensor 'OUT' has 4294967296 bytes, which is more than the 4293918720 that can be sent."),
    ],
)
def test_errors_of_models_reach_the_client(client: Any, name: str, reason: str) -> None:
    file = MODELS / "cases" / "1" / "model.py"
    lines = file.read_text().split("\n")
    line = next(number for number, text in enumerate(lines, 1) if f"def {name}(" in text) + 1
    with pytest.raises(InferenceServerException) as caught:
        case(client, name)
    assert caught.value.message().startswith(reason.format(file=file, line=line))
    assert caught.value.status() == ("404" if name == "error_with_code" else "500")
    assert case(client, "fine").as_numpy("OUT").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fine", [0, 1, 2, 3]),
        ("by_sender", [0, 1, 2, 3]),
        ("has_no_arguments", [0, 1, 2, 3]),
        ("wrong_dtype", [0.0, 1.0, 2.0, 3.0]),
        ("wrong_shape", [[0] * 3] * 2),
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


def test_outputs_may_be_missing_or_empty(client: Any) -> None:
    assert case(client, "missing_output").get_response().get("outputs", []) == []
    assert case(client, "empty").get_output("OUT")["shape"] == [0, 4]


def test_huge_output_is_answered(client: Any) -> None:
    assert case(client, "huge").as_numpy("OUT").sum() == 100_000_000


def test_request_without_a_response_fails(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="execute returned None, and the model sent no response"):
        case(client, "answers_never")


def test_model_output_is_logged(server: ServerProcess, client: Any) -> None:
    case(client, "prints")
    line = (MODELS / "cases" / "1" / "model.py").read_text()[:-1].split('log_warn("logged')[0].count("\n") + 1
    for expected in (f"model.py:{line}]", "logged by the model", "printed by the model", "printed to stderr"):
        until(lambda expected=expected: expected in server.log_text(), server.log_text)
