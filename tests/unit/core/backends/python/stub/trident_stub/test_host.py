"""ModelHost: a model's life, and every row of what `execute` may return."""

from __future__ import annotations

import gc
import json
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from trident_stub.errors import TritonError
from trident_stub.model import ModelFailed
from trident_stub.request import InferenceRequest
from trident_stub.response import InferenceResponse
from trident_stub.tensor import Tensor

from tests.unit.core.backends.python.stub.trident_stub.conftest import MakeHost
from tests.unit.core.backends.python.stub.trident_stub.memory_server import MemoryServer

DECOUPLED = {"model_transaction_policy": {"decoupled": True}}
PREFIX = "Failed to process the request(s) for model 'model_0_0', message: "


def model(execute: str, kind: str = "def") -> str:
    """A model whose `execute` has this body; `answers` are as many responses as there are requests."""
    lines = "".join(f"                    {line}\n" for line in execute.splitlines())
    return f"""
        import asyncio, sys, threading, triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            {kind} execute(self, requests):
                answers = [pb_utils.InferenceResponse([]) for _ in requests]
                if True:
{lines}
    """


def batch(count: int = 2) -> list[InferenceRequest]:
    return [InferenceRequest._arrived(number, [], ("A", "B")) for number in range(count)]


def error_of(response: InferenceResponse | None) -> tuple[str, int]:
    assert response is not None
    error = response.error()
    assert error is not None
    return error.message(), error.code()


def test_a_life(make_host: MakeHost, memory_server: MemoryServer, tmp_path: Path) -> None:
    host = make_host(
        """
        import json, os
        import triton_python_backend_utils as pb_utils
        from .beside import scale
        class TritonPythonModel:
            def initialize(self, args):
                self.args = args
                self.config = json.loads(args["model_config"])
            def execute(self, requests):
                responses = []
                for request in requests:
                    x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
                    responses.append(pb_utils.InferenceResponse([
                        pb_utils.Tensor("A", scale(x)), pb_utils.Tensor("B", x)]))
                return responses
            def is_ready(self):
                return self.config["name"] == "model"
            def finalize(self):
                pb_utils.Logger.log_info(f"over: {__name__} {pb_utils.get_model_dir()} {sorted(self.args)}")
        """,
        output=[{"name": "A"}, {"name": "B"}],
    )
    (tmp_path / "1" / "beside.py").write_text("def scale(x):\n    return x * 2\n")
    host.initialize()
    assert host.is_ready()
    wire = np.arange(3, dtype=np.float32).tobytes()
    requests = [
        InferenceRequest._arrived(number, [Tensor._view("X", "FP32", (3,), memoryview(wire))], ("A",))
        for number in range(2)
    ]
    for response in host.execute(requests):
        assert response is not None
        (output,) = response.output_tensors()
        assert (output.name(), output.as_numpy().tolist()) == ("A", [0, 2, 4])
    host.finalize()
    ((level, text, file, line),) = memory_server.lines
    assert (level, file, line) == (0, "model.py", 19)
    assert text == (
        f"over: 1.model {tmp_path}/1 ['model_config', 'model_instance_device_id', 'model_instance_kind', "
        "'model_instance_name', 'model_name', 'model_repository', 'model_version']"
    )


@pytest.mark.parametrize(
    ("execute", "text"),
    [
        (
            "return answers[1:]",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:2, and InferenceResponse(s) size is:1\n",
        ),
        ("return 5", "Expected a list in the execute return, found type '<class 'int'>'."),
        ("return tuple(answers)", "Expected a list in the execute return, found type '<class 'tuple'>'."),
        (
            "return [answers[0], 'text']",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'str'>'.",
        ),
        (
            "requests[1].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)\nreturn answers",
            "Expected a None object in the execute function return list for reschduled request, found type "
            "'<class 'trident_stub.response.InferenceResponse'>'.",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_wrong_returns_are_the_error_of_every_request(make_host: MakeHost, kind: str, execute: str, text: str) -> None:
    host = make_host(model(execute, kind))
    host.initialize()
    requests = batch()
    responses = host.execute(requests)
    assert [error_of(response) for response in responses] == [(PREFIX + text, TritonError.INTERNAL)] * 2
    for request in requests:
        with pytest.raises(Exception, match="Unable to send response"):
            request.get_response_sender().send(InferenceResponse([]), 1)


def test_requests_that_the_model_removes_from_its_list_are_answered(make_host: MakeHost) -> None:
    host = make_host(model("requests.clear()\nreturn answers"))
    host.initialize()
    assert all(response is not None for response in host.execute(batch()))


def test_a_model_without_execute_loads(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("class TritonPythonModel: pass")
    host.initialize()
    assert host.is_ready()
    text = f"Python model {tmp_path}/1/model.py does not implement `execute` method."
    assert [error_of(response)[0] for response in host.execute(batch())] == [PREFIX + text] * 2


def test_one_request_fails_alone(make_host: MakeHost) -> None:
    host = make_host(
        model("error = pb_utils.TritonError('no', pb_utils.TritonError.NOT_FOUND)\n"
              "return [answers[0], pb_utils.InferenceResponse(error=error)]")
    )  # fmt: skip
    host.initialize()
    good, bad = host.execute(batch())
    assert good is not None
    assert not good.has_error()
    assert error_of(bad) == ("no", TritonError.NOT_FOUND)


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("second", ["requests[1].get_response_sender().send(answers[1])", "return answers"])
def test_the_first_of_two_responses_is_delivered(
    make_host: MakeHost, memory_server: MemoryServer, kind: str, second: str
) -> None:
    host = make_host(model(f"requests[1].get_response_sender().send(answers[1])\n{second}", kind))
    host.initialize()
    text = "Unable to send response. Non-decoupled model cannot send more than one response."
    other, twice = host.execute(batch())
    assert text in error_of(other)[0]
    assert twice is None
    assert [(number, response is None, final) for number, response, final in memory_server.sent] == [
        (1, False, False),
        (1, True, True),
    ]
    assert [text in line for _, line, _, _ in memory_server.lines] == [True]


def test_a_request_that_was_answered_is_not_answered_again(make_host: MakeHost, memory_server: MemoryServer) -> None:
    host = make_host(model("requests[0].get_response_sender().send(answers[0], 1)\nraise ValueError"))
    host.initialize()
    first, second = host.execute(batch())
    assert first is None
    assert error_of(second)[0].startswith(f"{PREFIX}ValueError: \n\nAt:\n")
    assert len(memory_server.sent) == 1


def test_a_late_sender_finds_the_request_answered(make_host: MakeHost, memory_server: MemoryServer) -> None:
    host = make_host(model("self.sender = requests[0].get_response_sender()\nreturn answers"))
    host.initialize()
    host.execute(batch(1))
    with pytest.raises(Exception, match="Unable to send response"):
        host._instance.sender.send(InferenceResponse([]), 1)
    assert memory_server.sent == []


def test_a_rescheduled_request_is_not_answered(make_host: MakeHost) -> None:
    host = make_host(model("requests[0].set_release_flags(2)\nreturn [None, answers[1]]"))
    host.initialize()
    requests = batch()
    first, second = host.execute(requests)
    assert first is None
    assert second is not None
    assert [host.is_rescheduled(request) for request in requests] == [True, False]


def test_a_rescheduled_request_has_answers_but_no_end(make_host: MakeHost, memory_server: MemoryServer) -> None:
    """Its sender is over: that of the next execution ends it, and nobody misses this one."""
    lines = ["sender = requests[0].get_response_sender()", "sender.send(answers[0])", "self.sender = sender"]
    host = make_host(model("\n".join([*lines, "requests[0].set_release_flags(2)", "return None"])), **DECOUPLED)
    host.initialize()
    (request,) = batch(1)
    assert host.execute([request]) == [None]
    assert host.is_rescheduled(request)
    with pytest.raises(Exception, match="Response sender has been closed"):
        host._instance.sender.send(InferenceResponse([]))
    del request, host._instance.sender
    gc.collect()
    assert [final for _, _, final in memory_server.sent] == [False]


def test_a_rescheduled_request_fails_with_its_batch(make_host: MakeHost) -> None:
    host = make_host(model("requests[0].set_release_flags(2)\nreturn [None, 'text']"))
    host.initialize()
    requests = batch()
    assert all(error_of(response)[0].startswith(PREFIX) for response in host.execute(requests))
    assert not host.is_rescheduled(requests[0])


@pytest.mark.parametrize("last", ["raise ValueError('why')", "sys.exit(1)", "return answers"])
def test_a_decoupled_coroutine_that_fails(make_host: MakeHost, memory_server: MemoryServer, last: str) -> None:
    host = make_host(model(f"await asyncio.sleep(0)\n{last}", "async def"), **DECOUPLED)
    host.initialize()
    for _ in range(2):
        memory_server.something_was_sent.clear()
        assert list(host.execute(batch(1))) == [None]
        assert memory_server.something_was_sent.wait(60)
    number, response, final = memory_server.sent[0]
    assert (number, final) == (0, True)
    assert error_of(response)[0].startswith(PREFIX)
    assert memory_server.lines[0][:2] == (2, error_of(response)[0].removeprefix(PREFIX))


def test_coroutines_end_with_the_model(make_host: MakeHost, memory_server: MemoryServer) -> None:
    host = make_host(model("await asyncio.sleep(1000)", "async def"), **DECOUPLED)
    host.initialize()
    host.execute(batch(1))
    host.finalize()
    assert not any(thread.name == "model event loop" for thread in threading.enumerate())
    assert error_of(memory_server.sent[0][1])[0] == PREFIX + "CancelledError: "


@pytest.mark.parametrize("where", ["initialize", "finalize"])
def test_other_models_are_asked_in_execute_only(make_host: MakeHost, memory_server: MemoryServer, where: str) -> None:
    host = make_host(
        f"""
        import triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            def {where}(self, *args):
                pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="other").exec()
        """
    )
    reason = "TritonModelException: BLS is only supported during the 'execute' function.\n\nAt:\n"
    if where == "initialize":
        with pytest.raises(ModelFailed, match="^" + re.escape(reason)):
            host.initialize()
    else:
        host.initialize()
        host.finalize()
        assert memory_server.lines[0][1].startswith(reason)


def test_files_that_cannot_be_models(make_host: MakeHost, tmp_path: Path) -> None:
    with pytest.raises(ModelFailed) as caught:
        make_host("", file="1/model.pyc").initialize()
    assert str(caught.value) == "Model name must end with '.py'. Model name provided: 'model.pyc'"
    host = make_host("")
    os.unlink(tmp_path / "1" / "model.py")
    with pytest.raises(ModelFailed) as caught:
        host.initialize()
    assert str(caught.value) == f"Python model file not found in '{tmp_path}/1/model.py'"


def test_neighbours_of_both_folders_can_be_imported(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("import of_the_version, of_the_model\nclass TritonPythonModel: pass")
    (tmp_path / "1" / "of_the_version.py").touch()
    (tmp_path / "of_the_model.py").touch()
    host.initialize()


def test_what_finalize_raises_is_logged(make_host: MakeHost, memory_server: MemoryServer, tmp_path: Path) -> None:
    host = make_host("class TritonPythonModel:\n    def finalize(self):\n        raise ValueError('why')")
    host.initialize()
    host.finalize()
    text = f"ValueError: why\n\nAt:\n  {tmp_path}/1/model.py(3): finalize\n"
    assert memory_server.lines == [(2, text, "model.py", 0)]


COMPLETE = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n        "


@pytest.mark.parametrize(
    ("source", "completed"),
    [
        (f"{COMPLETE}config.set_max_batch_size(4)\n        return config", {"name": "model", "max_batch_size": 4}),
        ("class TritonPythonModel: pass", {"name": "model"}),
    ],
)
def test_auto_completion(make_host: MakeHost, source: str, completed: dict[str, object]) -> None:
    assert json.loads(make_host(source).auto_complete('{"name": "model"}')) == completed


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (
            "return None",
            "auto_complete_config function in model 'model' must return a valid pb.ModelConfig object.",
        ),
        (
            "return config.as_dict()",
            "auto_complete_config function in model 'model' must return a valid pb.ModelConfig object.",
        ),
        (
            "config.set_max_batch_size(-1)",
            "ValueError: configuration specified max_batch_size 0, but in auto-complete-config function for model "
            "'model' specified max_batch_size -1\n\nAt:\n  {file}(4): auto_complete_config\n",
        ),
    ],
)
def test_auto_completions_that_fail(make_host: MakeHost, tmp_path: Path, last: str, reason: str) -> None:
    with pytest.raises(ModelFailed) as caught:
        make_host(COMPLETE + last).auto_complete('{"name": "model"}')
    assert str(caught.value) == reason.format(file=tmp_path / "1" / "model.py")


def test_metrics_that_a_batch_dropped_are_deleted(make_host: MakeHost, memory_server: MemoryServer) -> None:
    memory_server.answers = {"metric_family": {"family": 3}, "metric_create": {"metric": 4}}
    host = make_host(model("pb_utils.MetricFamily('f', 'd', pb_utils.MetricFamily.GAUGE).Metric()\nreturn answers"))
    host.initialize()
    host.execute(batch())
    assert memory_server.calls[-1] == ("metric_delete", {"metric": 4})
