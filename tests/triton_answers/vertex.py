"""Vertex AI's port: health, predict in both forms, and the redirection to other routes."""

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
from tests.triton_answers.sagemaker import NO_HEADER, TEACHES, refused, request

(PORT,) = free_ports(1)
OPTIONS = ("--allow-vertex-ai=true", f"--vertex-ai-port={PORT}", "--vertex-ai-default-model=simple")
ENVIRONMENT = {"TRIDENT_PLATFORM": "plain", "AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
FORM = (
    "Content-Type must be 'application/vnd.vertex-ai-triton.binary+json;json-header-size=N', N being the length of the "
    "JSON in bytes"
)
UNREACHABLE = "the header X-Vertex-Ai-Triton-Redirect is '{}', which is not a path that it can reach"
UNTYPED = "parameter 'inputs' has invalid type. It should be either 'int', 'bool', or 'string'."
OTHERWISE = {
    "predict: size of no number": refused(TEACHES, FORM),
    "predict: no size": refused(TEACHES, FORM),
    "predict: type in the middle": refused(TEACHES, FORM),
    "predict: header of Triton": refused("the text of newer releases", NO_HEADER),
    "predict: no body": refused(TEACHES, "the body is empty"),
    "redirection: v2/models/simple/generate": refused("generate is reached, too", UNTYPED),
    **{
        f"redirection: {route}": refused(TEACHES, UNREACHABLE.format(route))
        for route in ("/v2/models/simple/infer", "nothing", "")
    },
}
BINARY = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
REDIRECT = "X-Vertex-Ai-Triton-Redirect"


def write_models(folder: Path) -> None:
    for name in ("simple", "str_id"):
        shutil.copytree(ROOT / "tests" / "golden" / "models" / name, folder / name)


def ask(server: ServerProcess, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}) -> Any:
    """The answer. Triton has no type for some errors, and no text for unknown paths; here all are JSON."""
    answer = http(server, method, path, body, headers, port=PORT)
    if answer["status"] >= 400:
        del answer["type"]
    return answer


def ask_methods(server: ServerProcess) -> Answers:
    wait_for_port(PORT)
    return {
        f"{method} {path}": ask(server, method, path)
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS")
        for path in ("/health", "/predict")
        if (method, path) != ("POST", "/predict")
    }


def ask_predict(server: ServerProcess) -> Answers:
    plain, _ = request()
    head, tail = request(binary=True)
    all_binary, _ = request(binary=True, parameters={"binary_data_output": True})
    found = {
        "JSON": (plain, {"Content-Type": "application/json"}),
        "no type": (plain, {}),
        "id": (request(id="7")[0], {"Content-Type": "application/json"}),
        "binary": (head + tail, {"Content-Type": f"{BINARY}{len(head)}"}),
        "binary both ways": (all_binary + tail, {"Content-Type": f"{BINARY}{len(all_binary)}"}),
        "size of no number": (head + tail, {"Content-Type": f"{BINARY}x"}),
        "no size": (head + tail, {"Content-Type": BINARY}),
        "negative size": (head + tail, {"Content-Type": f"{BINARY}-1"}),
        "size too large": (head + tail, {"Content-Type": f"{BINARY}100000"}),
        "type in the middle": (head + tail, {"Content-Type": f"x; {BINARY}{len(head)}"}),
        "header of Triton": (head + tail, {"Inference-Header-Content-Length": str(len(head))}),
        "no body": (b"", {}),
        "no input": (json.dumps({"inputs": []}).encode(), {}),
    }
    return {name: ask(server, "POST", "/predict", body, headers) for name, (body, headers) in found.items()}


def ask_redirection(server: ServerProcess) -> Answers:
    plain, _ = request()
    routes = (
        "v2/models/simple/infer", "/v2/models/simple/infer", "v2/models/simple/versions/1/infer",
        "v2/models/none/infer",
        "v2/health/live", "v2/health/ready", "v2", "v2/models/simple", "v2/models/simple/config",
        "v2/models/simple/ready",
        "v2/models/simple/versions/1", "metrics", "v2/models/simple/generate", "nothing", "",
    )  # fmt: skip
    found = {route: ask(server, "POST", "/predict", plain, {REDIRECT: route}) for route in routes if route != "metrics"}
    for answer in found.values():
        if isinstance(answer.get("body"), dict):
            for member in ("version", "extensions", "name"):
                answer["body"].pop(member, None)
    metrics = ask(server, "POST", "/predict", b"", {REDIRECT: "metrics"})
    index = ask(server, "POST", "/predict", b"{}", {REDIRECT: "v2/repository/index"})
    return found | {"metrics": metrics["status"], "index": index}
