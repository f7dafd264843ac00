"""generate and generate_stream, with models that answer once and with one that answers any number of times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers
from tests.triton_answers.inference import (
    ABSENT,
    LAST,
    NEWER,
    ROW,
    TOO_FEW,
    without_reason,
    write_golden_models,
    write_identities,
)

OPTIONS = ()
EVENTS = "text/event-stream; charset=utf-8"
STATUSES = {
    "INTERNAL": 500,
    "NOT_FOUND": 404,
    "UNAVAILABLE": 503,
    "UNSUPPORTED": 501,
    "INVALID_ARG": 400,
    "ALREADY_EXISTS": 400,
    "UNKNOWN": 400,
    "CANCELLED": 400,
}
# For generate, which answers with one response or with an error.
SEVERAL = ([], ["a", "b"], ["a", "error"], ["error", "a"], ["a", "error", "b"], ["empty", "a"], ["error", "error"])

OF_ERROR = "the status is that of the model's error, which Triton has freed before it looks for it"
ONE_RESPONSE = "generate answers with one response or with an error, whose status says so"
NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
    "number of responses"
)


def answer_of(status: int, body: Answers) -> Answers:
    return {"status": status, "type": "application/json", "body": body}


def events_of(status: int, *events: Answers) -> Answers:
    return {"status": status, "type": EVENTS, "events": list(events)}


def echoed(about: list[Any], **more: str) -> Answers:
    return {"ABOUT": json.dumps(about, sort_keys=True), "model_name": "echo", "model_version": "1", **more}


NOTHING = answer_of(200, echoed([{}, {}, "", 0]))
SAID = {"SAID": "a", "id": "1", "model_name": "sender", "model_version": "1"}
OTHERWISE: dict[str, tuple[str, Any]] = {
    **{
        f"values: {question} [[]]": (NEWER, TOO_FEW)
        for question in ("echo NUMBER", "echo FREE", "echo FLAG", "echo_batch NUMBER")
    },
    "parameters: all null": (ABSENT, NOTHING),
    "ids: null": (ABSENT, NOTHING),
    **{
        f"documents: {route} {text}": (LAST, answer)
        for text, body in (
            ('{"own":1,"own":2}', echoed([{}, {"own": 2}, "", 0])),
            ('{"id":"a","id":"b"}', echoed([{}, {"id": "b"}, "b", 0], id="b")),
        )
        for route, answer in (("generate", answer_of(200, body)), ("generate_stream", events_of(200, body)))
    },
    **{
        f"scripts: generate {script}": (
            ONE_RESPONSE,
            answer_of(500, {"error": "error" if "error" in script else NOT_ONE}),
        )
        for script in SEVERAL
    },
    **{
        f"scripts: {route} {[f'error {code}']}": (OF_ERROR, answer)
        for code, status in STATUSES.items()
        if status != 400
        for route, answer in (
            ("generate", answer_of(status, {"error": f"error {code}"})),
            ("generate_stream", events_of(status, {"error": f"error {code}"})),
        )
    },
    "scripts: generate_stream ['error', 'a']": (OF_ERROR, events_of(500, {"error": "error"}, SAID)),
    "scripts: generate_stream ['error', 'error']": (OF_ERROR, events_of(500, {"error": "error"}, {"error": "error"})),
}

ECHO = '''
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Return the inputs that are given, and all that the request says of itself."""

    def execute(self, requests):
        answers = []
        for request in requests:
            outputs = [pb_utils.Tensor("OUT_" + each.name(), each.as_numpy()) for each in request.inputs()]
            shapes = {each.name(): list(each.as_numpy().shape) for each in request.inputs()}
            about = [shapes, json.loads(request.parameters()), request.request_id(), request.correlation_id()]
            text = json.dumps(about, sort_keys=True).encode()
            one = [1] if BATCHES else []
            outputs.append(pb_utils.Tensor("ABOUT", np.array([text], np.object_).reshape([*one, 1])))
            answers.append(pb_utils.InferenceResponse(outputs))
        return answers
'''
SENDER = '''
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Send what each string says: a text, an error or nothing."""

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            script = pb_utils.get_input_tensor_by_name(request, "SCRIPT").as_numpy().reshape(-1)
            for text in script:
                text = text.decode()
                if text == "end":
                    break
                if text.startswith("error"):
                    code = getattr(pb_utils.TritonError, text[6:] or "INTERNAL")
                    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code)))
                elif text == "empty":
                    sender.send(pb_utils.InferenceResponse([]))
                else:
                    values = np.array([text] * (2 if text == "two" else 1), np.object_)
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("SAID", values)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
'''
ECHOED = {
    "TEXT": ("STRING", "-1"),
    "ONE": ("STRING", "1"),
    "NUMBER": ("INT32", "-1"),
    "ROWS": ("FP32", "2, -1"),
    "FREE": ("INT64", "-1, -1"),
    "FLAG": ("BOOL", "1"),
    "HALF": ("FP16", "-1"),
    "SMALL": ("UINT8", "3"),
}


def write_python(folder: Path, name: str, code: str, config: str) -> None:
    version = folder / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(code)
    (folder / name / "config.pbtxt").write_text(f'backend: "python"\n{config}\ninstance_group {{ kind: KIND_CPU }}\n')


def write_models(folder: Path) -> None:
    write_golden_models(folder, "simple", "str_id")
    write_identities(folder, ("BYTES", "FP32", "FP64", "INT32", "BOOL", "FP16"))
    for name, batch in (("echo", 0), ("echo_batch", 4)):
        tensors = "".join(
            f'input {{ name: "{each}" data_type: TYPE_{kind} dims: [ {dims} ] optional: true }}\n'
            f'output {{ name: "OUT_{each}" data_type: TYPE_{kind} dims: [ {dims} ] }}\n'
            for each, (kind, dims) in ECHOED.items()
        )
        about = 'output { name: "ABOUT" data_type: TYPE_STRING dims: [ 1 ] }'
        code = ECHO.replace("BATCHES", str(bool(batch)))
        write_python(folder, name, code, f"max_batch_size: {batch}\n{tensors}{about}")
    write_python(
        folder,
        "sender",
        SENDER,
        'model_transaction_policy { decoupled: true }\ninput { name: "SCRIPT" data_type: TYPE_STRING dims: [ -1 ] }\n'
        'output { name: "SAID" data_type: TYPE_STRING dims: [ -1 ] }',
    )


def ask(
    server: ServerProcess,
    model: str,
    document: Any,
    route: str = "generate",
    method: str = "POST",
    headers: dict[str, str] | None = None,
) -> Any:
    """Status, content type and body, or the events of a stream."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    status, answered, content = server.request(method, f"/v2/models/{model}/{route}", body, headers or {})
    answer: Answers = {"status": status, "type": answered.get("Content-Type")}
    if answer["type"] == EVENTS:
        events = content.decode().split("\n\n")
        assert events.pop() == ""
        answer["events"] = [
            json.loads(event.removeprefix("data: ")) if event.startswith("data: ") else event for event in events
        ]
    else:
        try:
            answer["body"] = json.loads(content)
        except ValueError:
            answer["text"] = content.decode(errors="backslashreplace")
        else:
            if "error" in answer["body"]:
                answer["body"].pop("hint", None)
    return without_reason(answer)


def ask_values(server: ServerProcess) -> Answers:
    values: list[Any] = [
        *(0, -1, 1.5, True, None, "", "a", [], [1], [1, 2], [1, 2, 3, 4], ["a"], ["a", "b"], {}, "é\0x"),
        *([[1, 2], [3, 4]], [[1]], [[]], [1.5], [True], [None], [{}], ["a", 1], [1, "a"], 300, 2**63),
    ]
    names = {"echo": ("TEXT", "NUMBER", "ROWS", "FREE", "FLAG", "SMALL"), "echo_batch": ("NUMBER", "ROWS", "ONE")}
    return {
        f"{model} {name} {json.dumps(value)}": ask(server, model, {name: value})
        for model, each in names.items()
        for name in each
        for value in values
    } | {"half": ask(server, "echo", {"HALF": 1})}


def ask_parameters(server: ServerProcess) -> Answers:
    values: list[Any] = [
        0,
        -1,
        1.5,
        True,
        False,
        "",
        "a",
        [],
        {},
        [1],
        {"a": 1},
        2**63 - 1,
        2**63,
        2**64,
        -(2**63),
        None,
    ]
    keys = ["own", "sequence_id", "timeout", "priority", "triton_x", "headers", "binary_data_output", "", "stream"]
    answers = {}
    for key in keys:
        for value in values if key == "own" else [1, "a", True]:
            answers[f"{key} {json.dumps(value)}"] = ask(server, "echo", {key: value})
            answers[f"parameters {key} {json.dumps(value)}"] = ask(server, "echo", {"parameters": {key: value}})
    for value in values:
        answers[f"all {json.dumps(value)}"] = ask(server, "echo", {"parameters": value})
        answers[f"nested {json.dumps(value)}"] = ask(server, "echo", {"parameters": {"parameters": value}})
    answers["inputs in parameters"] = ask(server, "echo", {"NUMBER": 1, "parameters": {"TEXT": "a", "own": 2}})
    answers["input in both"] = ask(server, "echo", {"NUMBER": 1, "parameters": {"NUMBER": 2}})
    answers["parameter in both"] = ask(server, "echo", {"own": 1, "parameters": {"own": 2}})
    answers["wrong input in parameters"] = ask(server, "echo", {"parameters": {"NUMBER": "a"}})
    return answers


def ask_ids(server: ServerProcess) -> Answers:
    ids: list[Any] = ["", "1", "é", "a b", 1, None, True, [], {}, 1.5]
    answers = {json.dumps(value): ask(server, "echo", {"id": value}) for value in ids}
    answers |= {
        f"in parameters {json.dumps(value)}": ask(server, "echo", {"parameters": {"id": value}}) for value in ids
    }
    answers |= {f"error {json.dumps(value)}": ask(server, "simple", {"id": value, "INPUT0": ROW}) for value in ids[:4]}
    return answers


def ask_documents(server: ServerProcess) -> Answers:
    documents = [b"", b" ", b"{}", b"[]", b"null", b"1", b'"a"', b"{", b"nonsense", b'{"NUMBER":1,}', b'{"NUMBER":1}x']
    documents += [b'{"NUMBER":1,"NUMBER":2}', b'{"own":1,"own":2}', b'{"id":"a","id":"b"}', b'{"NUMBER":NaN}']
    documents += [b'{"ROWS":[NaN,Infinity]}', b'{"own":NaN}', b'{"NUMBER":1}{"NUMBER":2}', b'{"TEXT":"\\u0000"}']
    documents += [b'{"NUMBER":01}', b'{"NUMBER":1e2}', b'{"NUMBER":1.0}', b'{"ROWS":[1e2,1e400]}', b'{"UNKNOWN":[1]}']
    documents += [
        b'{"inputs":[{"name":"NUMBER","shape":[1],"datatype":"INT32","data":[1]}]}',
        b'{"parameters":{},"parameters":{}}',
    ]
    return {
        f"{route} {text.decode()}": ask(server, "echo", text, route)
        for text in documents
        for route in ("generate", "generate_stream")
    }


def ask_models(server: ServerProcess) -> Answers:
    answers = {}
    for route in ("generate", "generate_stream"):
        for document in (
            {"INPUT0": ROW, "INPUT1": ROW},
            {"INPUT0": ROW, "INPUT1": ROW * 2},
            {"INPUT0": ROW * 2, "INPUT1": ROW * 2},
            {"INPUT0": ROW * 9, "INPUT1": ROW * 9},
            {"INPUT0": ROW, "INPUT1": ROW, "INPUT2": ROW},
            {"INPUT0": ROW, "INPUT1": ROW, "OUTPUT0": [1]},
            {"INPUT0": ROW},
            {"INPUT0": [], "INPUT1": []},
            {"INPUT0": 1, "INPUT1": 1},
            {},
            {"text_input": "a"},
        ):
            answers[f"{route} simple {json.dumps(document)}"] = ask(server, "simple", document, route)
        for model, value in (
            *(("id_BYTES", each) for each in ("a", ["a"], ["a", "b"], [])),
            *(("id_FP32", each) for each in (0.1, [1, 2.5], 1e10, 16777217, -1e-7, 3.4028234663852886e38)),
            *(("id_FP64", each) for each in (0.1, 1e300, 1e16, 5e-324)),
            *(("id_INT32", each) for each in (1, [1], [1, 2], [])),
            *(("id_BOOL", each) for each in (True, [True, False], 1)),
            *(("id_FP16", each) for each in (1, [])),
        ):
            answers[f"{route} {model} {value}"] = ask(server, model, {"IN": value}, route)
        for tail in ("versions/1/", "versions/2/", "versions/x/", "versions/-1/"):
            answers[f"{route} {tail}"] = ask(server, "id_INT32", {"IN": 1}, tail + route)
        answers[f"{route} unknown"] = ask(server, "unknown", {"IN": 1}, route)
        answers[f"{route} strings of a batch"] = ask(server, "str_id", {"IN": ["a", "b", "c", "d"]}, route)
    return answers


def ask_scripts(server: ServerProcess) -> Answers:
    scripts = [*SEVERAL, ["a"], ["two"], ["empty"], ["a", "end"], *([f"error {code}"] for code in STATUSES)]
    return {
        f"{route} {script}": ask(server, "sender", {"SCRIPT": script, "id": "1"}, route)
        for script in scripts
        for route in ("generate", "generate_stream")
    }


def ask_refusals_of_streams(server: ServerProcess) -> Answers:
    documents: list[Any] = [
        {},
        {"SCRIPT": 1},
        {"SCRIPT": ["a"], "other": []},
        {"SCRIPT": None},
        {"SCRIPT": "a", "own": 1},
    ]
    answers = {
        f"{route} {json.dumps(document)}": ask(server, "sender", document, route)
        for document in documents
        for route in ("generate", "generate_stream")
    }
    answers["infer"] = ask(server, "sender", {"inputs": []}, "infer")
    answers["infer, nonsense"] = ask(server, "sender", b"nonsense", "infer")
    return answers


def ask_headers(server: ServerProcess) -> Answers:
    answers = {}
    for route in ("generate", "generate_stream"):
        for name, value in (
            *(
                ("Content-Encoding", each)
                for each in ("gzip", "identity", "", "br", "GZIP", "deflate", "identity, gzip")
            ),
            *(("Accept-Encoding", each) for each in ("gzip", "deflate")),
            *(("Content-Type", each) for each in ("text/plain", "application/octet-stream", "")),
            *(("Accept", each) for each in ("text/event-stream", "text/html", "application/json")),
            *(("Inference-Header-Content-Length", each) for each in ("0", "5", "-1", "a", "99999")),
            *(("endpoint-load-metrics-format", each) for each in ("json", "text", "other")),
        ):
            answers[f"{route} {name} {value!r}"] = ask(server, "id_INT32", {"IN": 1}, route, headers={name: value})
        for method in ("GET", "PUT", "DELETE", "PATCH"):
            answers[f"{method} {route}"] = ask(server, "id_INT32", {"IN": 1}, route, method)
    return answers
