"""SageMaker's port with one model: `/ping` and `/invocations`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.contract.servers.ports import free_ports
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.triton_answers import Answers, http, wait_for_port

(PORT,) = free_ports(1)
OPTIONS = ("--allow-sagemaker=true", f"--sagemaker-port={PORT}")
ENVIRONMENT = {"TRIDENT_PLATFORM": "plain", "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple"}


def refused(reason: str, text: str) -> tuple[str, Any]:
    """An entry of `OTHERWISE`: a 400 with this text."""
    return reason, {"status": 400, "body": {"error": text}}


TEACHES = "Triton has no text, or one about something else"
FORM = (
    "Content-Type must be 'application/vnd.sagemaker-triton.binary+json;json-header-size=N', N being the length of the "
    "JSON in bytes"
)
NO_HEADER = (
    "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing inputs in "
    "binary data format"
)
OTHERWISE = {
    "invocations: size of no number": refused(TEACHES, "Unable to parse json-header-size, got: x"),
    "invocations: no size": refused(TEACHES, FORM),
    "invocations: type in the middle": refused(TEACHES, FORM),
    "invocations: header of Triton": refused("the text of newer releases", NO_HEADER),
    "invocations: no body": refused(TEACHES, "the body is empty"),
    "invocations: size too small": refused(
        "the reason is the parser's", "failed to parse the request JSON buffer: unexpected end of data at 10"
    ),
}
BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="


def write_models(folder: Path) -> None:
    shutil.copytree(ROOT / "tests" / "golden" / "models" / "simple", folder / "simple")


def ask(server: ServerProcess, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}) -> Any:
    """The answer. Triton has no type for some errors, and no text for unknown paths; here all are JSON."""
    answer = http(server, method, path, body, headers, port=PORT)
    if answer["status"] >= 400:
        del answer["type"]
    return answer


def request(*, binary: bool = False, **more: Any) -> tuple[bytes, bytes]:
    """The JSON of a request, and what follows it."""
    row = list(range(16))
    data = {"parameters": {"binary_data_size": 64}} if binary else {"data": row}
    names = ("INPUT0", "INPUT1")
    inputs = [{"name": name, "shape": [1, 16], "datatype": "INT32", **data} for name in names]
    tensors = b"".join(each.to_bytes(4, "little") for each in row) * 2 if binary else b""
    return json.dumps({"inputs": inputs, **more}).encode(), tensors


def ask_methods(server: ServerProcess) -> Answers:
    wait_for_port(PORT)
    return {
        f"{method} {path}": ask(server, method, path)
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS")
        for path in ("/ping", "/invocations")
        if (method, path) != ("POST", "/invocations")
    }


def ask_invocations(server: ServerProcess) -> Answers:
    plain, _ = request()
    head, tail = request(binary=True)
    all_binary, _ = request(binary=True, parameters={"binary_data_output": True})
    found = {
        "JSON": (plain, {"Content-Type": "application/json"}),
        "no type": (plain, {}),
        "another type": (plain, {"Content-Type": "application/octet-stream"}),
        "id": (request(id="7")[0], {"Content-Type": "application/json"}),
        "one output": (request(outputs=[{"name": "OUTPUT1"}])[0], {}),
        "binary output": (request(outputs=[{"name": "OUTPUT1", "parameters": {"binary_data": True}}])[0], {}),
        "binary": (head + tail, {"Content-Type": f"{BINARY}{len(head)}"}),
        "binary both ways": (all_binary + tail, {"Content-Type": f"{BINARY}{len(all_binary)}"}),
        "size of no number": (head + tail, {"Content-Type": f"{BINARY}x"}),
        "no size": (head + tail, {"Content-Type": BINARY}),
        "negative size": (head + tail, {"Content-Type": f"{BINARY}-1"}),
        "size too large": (head + tail, {"Content-Type": f"{BINARY}100000"}),
        "size too small": (head + tail, {"Content-Type": f"{BINARY}10"}),
        "type in the middle": (head + tail, {"Content-Type": f"x; {BINARY}{len(head)}"}),
        "header of Triton": (head + tail, {"Inference-Header-Content-Length": str(len(head))}),
        "truncated": (head + tail[:-4], {"Content-Type": f"{BINARY}{len(head)}"}),
        "too long": (head + tail + b"1234", {"Content-Type": f"{BINARY}{len(head)}"}),
        "no body": (b"", {}),
        "unknown input": (
            json.dumps({"inputs": [{"name": "X", "shape": [1], "datatype": "INT32", "data": [1]}]}).encode(),
            {},
        ),
        "no input": (json.dumps({"inputs": []}).encode(), {}),
        "target model": (plain, {"X-Amzn-SageMaker-Target-Model": "other"}),
        "custom attributes": (plain, {"X-Amzn-SageMaker-Custom-Attributes": "a=b"}),
    }
    return {name: ask(server, "POST", "/invocations", body, headers) for name, (body, headers) in found.items()}
