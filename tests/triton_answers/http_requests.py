"""What a Python model sees of a request over HTTP: parameters, headers, sequence, timeout, and the outputs wanted."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers
from tests.triton_answers.http_binary import LENGTH
from tests.triton_answers.http_generate import write_python
from tests.triton_answers.inference import NEWER, refusal, tensor

OPTIONS = ("--http-header-forward-pattern=x-.*|^my|sequence|priority|timeout|triton|headers|binary|accept-l",)


def seen(parameters: Answers) -> list[Any]:
    """What the model says of `request()` with these parameters."""
    return [parameters, "", 0, 0, 0, ["ABOUT", "NEVER", "SECOND"], ["IN"], {"SECOND": [1, 2]}]


BLANKS = "blanks around the value of a header are no part of it: RFC 9110 section 5.5"
OTHERWISE: dict[str, tuple[str, Any]] = {
    "headers: X-EMPTY: ": (BLANKS, seen({"X-EMPTY": ""})),
    "headers: X-A:   blanks  ": (BLANKS, seen({"X-A": "blanks"})),
    **{
        f"headers: {name}: {value}": (
            NEWER,
            refusal(f"Header '{name}' is reserved for Triton usage and cannot be forwarded."),
        )
        for name, value in (
            *((name, "1") for name in ("sequence_id", "priority", "timeout", "headers", "triton_a")),
            *((name, "true") for name in ("sequence_start", "sequence_end", "binary_data_output")),
        )
    },
}

CODE = '''
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Say what the request says of itself."""

    def execute(self, requests):
        answers = []
        for request in requests:
            names = request.requested_output_names()
            about = [json.loads(request.parameters()), request.request_id(), request.correlation_id(), request.flags(),
                     request.timeout(), sorted(names), [each.name() for each in request.inputs()]]
            text = json.dumps(about, sort_keys=True).encode()
            outputs = [pb_utils.Tensor("ABOUT", np.array([text], np.object_))]
            outputs += [pb_utils.Tensor("SECOND", np.array([1, 2], np.int32))]
            answers.append(pb_utils.InferenceResponse(outputs))
        return answers
'''


def write_models(folder: Path) -> None:
    write_python(
        folder,
        "about",
        CODE,
        'input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] optional: true },'
        ' { name: "OTHER" data_type: TYPE_FP32 dims: [ -1 ] optional: true } ]\n'
        'output [ { name: "ABOUT" data_type: TYPE_STRING dims: [ 1 ] },'
        ' { name: "SECOND" data_type: TYPE_INT32 dims: [ 2 ] },'
        ' { name: "NEVER" data_type: TYPE_INT32 dims: [ 1 ] } ]',
    )


def ask(
    server: ServerProcess, document: Any, headers: list[tuple[str, str]] | None = None, route: str = "infer"
) -> Any:
    """What the model says, or the whole answer if it says nothing. `headers` may have a name twice."""
    connection = HTTPConnection(HOST, server.http_port, timeout=60)
    try:
        body = json.dumps(document).encode()
        connection.putrequest("POST", f"/v2/models/about/{route}", skip_accept_encoding=True)
        for name, value in [*(headers or []), ("Content-Length", str(len(body)))]:
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    head = int(response.headers.get(LENGTH) or len(content))
    answer = json.loads(content[:head])
    if response.status == 200 and route == "generate":
        return json.loads(answer["ABOUT"])
    if response.status == 200 and head == len(content):
        outputs = {each["name"]: each["data"] for each in answer["outputs"]}
        return [*json.loads(outputs.pop("ABOUT", ["[]"])[0]), outputs]
    answer.pop("hint", None)
    return {"status": response.status, "type": response.headers["Content-Type"], "body": answer}


def request(**more: Any) -> Any:
    return {"inputs": [tensor("IN", [1], [1])], **more}


def ask_parameters(server: ServerProcess) -> Answers:
    values: list[Any] = ["", "a", "é", 0, -1, 2**63 - 1, 2**63, 2**64, -(2**63), 1.5, -0.0, 1e300, True, False]
    answers = {f"own {value!r}": ask(server, request(parameters={"own": value})) for value in values}
    for parameters in (
        {"a": 1, "b": "x", "c": True, "d": 1.5},
        {"": 1},
        {"é": "ü"},
        {"a" * 300: 1},
        {"sequence_id": 5},
        {"sequence_id": "five"},
        {"sequence_id": 2**64 - 1},
        {"sequence_id": 5, "sequence_start": True},
        {"sequence_id": 5, "sequence_end": True, "sequence_start": False},
        {"sequence_id": 5, "sequence_start": True, "sequence_end": True},
        {"sequence_start": True},
        {"priority": 3},
        {"timeout": 10**9},
        {"timeout": 2**64 - 1},
        {"binary_data_output": False},
        {"headers": "a"},
        {"id": "a"},
        {"model_name": "a", "binary_data": True, "classification": 1, "unload_dependents": True},
    ):
        answers[json.dumps(parameters)[:60]] = ask(server, request(parameters=parameters))
    answers["of an input"] = ask(server, {"inputs": [tensor("IN", [1], [1], parameters={"own": 1})]})
    answers["of an output"] = ask(server, request(outputs=[{"name": "ABOUT", "parameters": {"own": 1}}]))
    return answers


def ask_headers(server: ServerProcess) -> Answers:
    headers = [
        [("X-A", "1")],
        [("x-a", "a b")],
        [("X-EMPTY", "")],
        [("X-A", "1"), ("X-B", "2")],
        [("X-A", "1"), ("X-A", "2")],
        [("X-A", "1"), ("x-a", "2")],
        [("X-A", "  blanks  ")],
        [("X-A", "a,b;c=d")],
        [("X-Long", "a" * 2000)],
        [("X_A", "underscore")],
        [("MyHeader", "1")],
        [("NotMyHeader", "1")],
        [("Accept-Language", "de")],
        [("Sequence_Id", "1")],
        [("sequence_id", "1")],
        [("sequence_start", "true")],
        [("sequence_end", "true")],
        [("priority", "1")],
        [("Priority", "1")],
        [("timeout", "1")],
        [("headers", "1")],
        [("binary_data_output", "true")],
        [("triton_a", "1")],
        [("Triton_a", "1")],
        [("triton-a", "1")],
        [("Other", "1")],
    ]
    answers = {}
    for each in headers:
        name = ", ".join(f"{key}: {value[:20]}" for key, value in each)
        answers[name] = ask(server, request(), each)
    answers["beside a parameter"] = ask(server, request(parameters={"X-A": "own"}), [("X-A", "header")])
    answers["beside other parameters"] = ask(server, request(parameters={"own": 1}), [("X-A", "header")])
    answers["generate"] = ask(server, {"IN": 1, "own": 2}, [("X-A", "1"), ("priority", "1")], "generate")
    return answers


def ask_outputs(server: ServerProcess) -> Answers:
    lists: list[list[str]] = [
        [],
        ["ABOUT"],
        ["SECOND"],
        ["SECOND", "ABOUT"],
        ["NEVER"],
        ["ABOUT", "NEVER"],
        ["UNKNOWN"],
    ]
    answers = {str(names): ask(server, request(outputs=[{"name": name} for name in names])) for names in lists}
    answers["binary and JSON"] = ask(
        server, request(outputs=[{"name": "SECOND", "parameters": {"binary_data": True}}, {"name": "ABOUT"}])
    )
    answers["classes"] = ask(
        server, request(outputs=[{"name": "SECOND", "parameters": {"classification": 1}}, {"name": "ABOUT"}])
    )
    return answers


def ask_inputs(server: ServerProcess) -> Answers:
    other = tensor("OTHER", [2], [1, 2], "FP32")
    one = tensor("IN", [1], [1])
    lists = {
        "none": [],
        "first": [one],
        "second": [other],
        "both": [one, other],
        "reversed": [other, one],
        "three": [one, other, tensor("THIRD", [1], [1])],
        "unknown": [tensor("THIRD", [1], [1])],
        "twice": [other, other],
        "shape": [tensor("IN", [2], [1, 2])],
        "rank": [tensor("OTHER", [1, 2], [1, 2], "FP32")],
        "datatype": [tensor("OTHER", [2], [1, 2], "FP64")],
        "empty": [tensor("OTHER", [0], [], "FP32")],
    }
    return {name: ask(server, {"inputs": inputs}) for name, inputs in lists.items()}
