"""The three roles of an image: how a platform starts a container, and which requests it sends."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

TREE = Path(__file__).resolve().parents[1]
MODELS = TREE / "deploy" / "models"
PIXELS = json.loads((TREE / "deploy" / "digits" / "7.json").read_text())["inputs"][0]["data"]


class Wrong(Exception):
    """A failed check; the argument says what is wrong."""


class Mount(NamedTuple):
    source: Path
    target: str


@dataclass(frozen=True)
class Role:
    """One platform's way to start a container. `ask` sends an inference request and returns the predicted class."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    mounts: Sequence[Mount]
    port: int
    health: str
    ask: Callable[[Role], int]


def call(port: int, method: str, path: str, document: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        body = None if document is None else json.dumps(document)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def infer_request() -> dict[str, Any]:
    picture = {"name": "INPUT", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": PIXELS}
    return {"inputs": [picture]}


def best_of_v2(port: int, path: str) -> int:
    """The most likely class in the response to a v2 request."""
    status, body = call(port, "POST", path, infer_request())
    expect(status == 200, f"{path}: {status} {body!r}")
    return best(json.loads(body)["outputs"][0]["data"])


def best_of_instances(port: int, path: str) -> int:
    """The most likely class in the response to a predict request of Vertex AI."""
    flat = [float(each) for each in PIXELS]
    instance = [[flat[row * 8 : row * 8 + 8] for row in range(8)]]
    status, body = call(port, "POST", path, {"instances": [instance]})
    expect(status == 200, f"{path}: {status} {body!r}")
    return best(json.loads(body)["predictions"][0])


def best(probabilities: Sequence[float]) -> int:
    return max(range(len(probabilities)), key=probabilities.__getitem__)


def expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Wrong(otherwise)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def roles() -> list[Role]:
    plain, plain_metrics, sagemaker, vertex, vertex_metrics = free_ports(5)
    digits = Mount(MODELS / "digits", "/opt/ml/model/digits")
    models = Mount(MODELS, "/models")
    own = {"TRIDENT_MODEL_REPOSITORY": "/models", "TRIDENT_HTTP_PORT": str(plain)}
    endpoint = "/v1/endpoints/1/deployedModels/2"
    platform = {
        "AIP_MODE": "PREDICTION",
        "AIP_HTTP_PORT": str(vertex),
        "AIP_HEALTH_ROUTE": endpoint,
        "AIP_PREDICT_ROUTE": f"{endpoint}:predict",
    }
    flags = ["--model-repository=/models", "--vertex-ai-default-model=digits", f"--metrics-port={vertex_metrics}"]
    return [
        Role(
            "plain, without arguments",
            [],
            {**own, "TRIDENT_METRICS_PORT": str(plain_metrics)},
            [models],
            plain,
            "/v2/health/ready",
            lambda role: best_of_v2(role.port, "/v2/models/digits/infer"),
        ),
        Role(
            "SageMaker, with `serve`",
            ["serve"],
            {"SAGEMAKER_BIND_TO_PORT": str(sagemaker)},
            [digits],
            sagemaker,
            "/ping",
            lambda role: best_of_v2(role.port, "/invocations"),
        ),
        Role(
            "Vertex AI, with flags alone",
            flags,
            platform,
            [models],
            vertex,
            endpoint,
            lambda role: best_of_instances(role.port, f"{endpoint}:predict"),
        ),
    ]
