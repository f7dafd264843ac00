"""Models whose executions a test holds, requests that are sent in an order, and why models are refused."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import http
from tests.waiting import until

CODE = re.compile("^(Invalid argument|Internal|Unsupported|Not found|Unavailable|Unknown|Already exists): ")
# Writes what each execution gets as a line, waits while its file `held` is there, and answers each output with the
# input of the same number or, if there is none, with the number of requests in the execution.
SOURCE = """
import json, time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

FOLDER = Path({folder!r})

def plain(array):
    return [each.decode() if isinstance(each, bytes) else each for each in array.reshape(-1).tolist()]

class TritonPythonModel:
    def initialize(self, args):
        self.outputs = [each["name"] for each in json.loads(args["model_config"])["output"]]
{more}
    def execute(self, requests):
        seen, responses = [], []
        for request in requests:
            inputs = {{each.name(): each for each in request.inputs()}}
            arrays = {{name: each.as_numpy() for name, each in inputs.items()}}
            seen.append({{name: [plain(array), list(array.shape)] for name, array in sorted(arrays.items())}})
            outputs = []
            for name in self.outputs:
                array = arrays.get(name.replace("OUTPUT", "INPUT"))
                if array is None:
                    array = np.full((1, 1) if {batching} else (1,), len(requests), np.int32)
                outputs.append(pb_utils.Tensor(name, array))
            responses.append(pb_utils.InferenceResponse(outputs))
        with (FOLDER / "seen").open("a") as file:
            file.write(json.dumps([time.monotonic_ns(), seen]) + "\\n")
        while (FOLDER / "held").exists():
            time.sleep(0.002)
        return responses
"""


def tensors(kind: str, *named: str) -> str:
    """Tensors of a configuration: `tensors("input", "A INT32 1", "B STRING -1 optional: true")`."""
    found = []
    for each in named:
        name, datatype, dims, *more = each.split(" ", 3)
        found.append(f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] {"".join(more)} }}')
    return " ".join(found)


def write_held(repository: Path, name: str, config: str, more: str = "") -> None:
    """A Python model of `SOURCE`, with one instance if `config` has no other group. `more` are methods, indented."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    folder = folder_of(repository, name)
    folder.mkdir()
    if "instance_group" not in config:
        config += " instance_group { count: 1 kind: KIND_CPU }"
    (repository / name / "config.pbtxt").write_text(f'backend: "python" {config}')
    batching = bool(re.search(r"max_batch_size: *[1-9]", config))
    (version / "model.py").write_text(SOURCE.format(folder=str(folder), batching=batching, more=more))


def folder_of(repository: Path, name: str) -> Path:
    return repository.parent / f"of-{name}"


def document(inputs: Iterable[tuple[str, str, list[int], list[Any]]], **more: Any) -> Any:
    """A request with inputs of (name, datatype, shape, data)."""
    named = [dict(zip(("name", "datatype", "shape", "data"), each, strict=True)) for each in inputs]
    return {"inputs": named, **more}


def infer(server: ServerProcess, model: str, request: Any) -> Any:
    """The outputs of an answer by name, or its status and error."""
    return short(http(server, "POST", f"/v2/models/{model}/infer", request))


def short(answer: Any) -> Any:
    if answer["status"] != 200:
        body = answer.get("body")
        return {
            "status": answer["status"],
            "error": body["error"] if isinstance(body, dict) and "error" in body else answer,
        }
    return {each["name"]: [each["data"], each["shape"]] for each in answer["body"].get("outputs", ())}


def counts(server: ServerProcess, model: str) -> Any:
    """The counts in the statistics of a model."""
    (entry,) = server.json("GET", f"/v2/models/{model}/stats")["model_stats"]
    of_requests = {name: each["count"] for name, each in entry["inference_stats"].items()}
    batch_stats = [[each["batch_size"], each["compute_infer"]["count"]] for each in entry["batch_stats"]]
    return {
        "inferences": entry["inference_count"],
        "executions": entry["execution_count"],
        "requests": of_requests,
        "batches": sorted(batch_stats),
    }


def executions(server: ServerProcess, model: str) -> list[Any]:
    """When each execution of a model of `write_held` began, and what it got."""
    seen = folder_of(server.repository, model) / "seen"
    return [json.loads(line) for line in seen.read_text().splitlines()] if seen.exists() else []


class Sender:
    """A context that sends requests to a model in an order: `send` returns when one is executed, queued or answered.

    Requests are numbered from 0; all are answered at the context's end.
    """

    def __init__(self, server: ServerProcess, model: str) -> None:
        self.server = server
        self.model = model
        self._threads: list[threading.Thread] = []
        self._answers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads), "a request was not answered"

    @property
    def pending(self) -> int:
        return int(self.server.metric("nv_inference_pending_request_count", f'model="{self.model}"'))

    @property
    def executed(self) -> int:
        """The requests that are executed and not answered, as far as that is known."""
        return 0

    @property
    def answered(self) -> list[int]:
        return sorted(self._answers)

    @property
    def answers(self) -> list[Any]:
        return [answer for _, answer in sorted(self._answers.items())]

    def is_there(self, count: int) -> bool:
        # In this order a request that moves on meanwhile is not counted twice.
        return len(self._answers) + self.executed + self.pending >= count

    def send(self, request: Any) -> int:
        """Returns the request's number."""
        number = len(self._threads)

        def ask() -> None:
            self._answers[number] = infer(self.server, self.model, request)

        self._threads.append(threading.Thread(target=ask))
        self._threads[-1].start()
        until(lambda: self.is_there(number + 1), lambda: f"request {number} did not arrive")
        return number

    def wait(self, number: int) -> None:
        """Wait until a request is answered."""
        until(lambda: number in self._answers, lambda: f"request {number} was not answered")


class Held(Sender):
    """A sender to a model of `write_held`, whose executions wait until the context ends."""

    def __init__(self, server: ServerProcess, model: str) -> None:
        super().__init__(server, model)
        self._folder = folder_of(server.repository, model)
        self._before = self._held_from = len(self._lines())

    def _lines(self) -> list[Any]:
        return executions(self.server, self.model)

    @property
    def executions(self) -> list[Any]:
        """What the model got in each execution since the context was made."""
        return [seen for _, seen in self._lines()[self._before :]]

    @property
    def starts(self) -> list[int]:
        """When they began."""
        return [start for start, _ in self._lines()[self._before :]]

    @property
    def executed(self) -> int:
        return sum(len(seen) for _, seen in self._lines()[self._held_from :]) if (self._folder / "held").exists() else 0

    def __enter__(self) -> Self:
        self.hold()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
        super().__exit__(*error)

    def start(self, request: Any) -> None:
        """Send it, and wait until it is executed."""
        self.send(request)
        until(lambda: self.executed, "no request is executed")

    def hold(self) -> None:
        """Let executions wait from now on. None may be under way."""
        self._held_from = len(self._lines())
        (self._folder / "held").touch()

    def release(self) -> None:
        (self._folder / "held").unlink(missing_ok=True)


def refusal(server: ServerProcess, model: str) -> Any:
    """Why a model is not loaded; "loaded" if it is, and it is unloaded then.

    Triton says what is wrong with a configuration in its log only, Trident in the index.
    """
    status, _, content = server.request("POST", f"/v2/repository/models/{model}/load", b"{}")
    if status == 200:
        server.request("POST", f"/v2/repository/models/{model}/unload", b"{}")
        return "loaded"
    index = server.json("POST", "/v2/repository/index")
    reasons = [each["reason"] for each in index if each["name"] == model and each.get("reason")]
    pattern = re.compile(rf"Poll failed for model directory '{re.escape(model)}': (.*?)\"?$", re.MULTILINE)
    text: str = (reasons or pattern.findall(server.log_text()) or [json.loads(content)["error"]])[-1]
    text = text.removeprefix(f"load failed for model '{model}': ").removesuffix("\n")
    return CODE.sub("", text).replace(str(server.repository), "/models")
