"""Requests of the `simple` model, and the check that a server still answers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.contract.servers.server import ServerProcess
from tests.project import ROOT

GOLDEN_MODELS = ROOT / "tests" / "golden" / "models"
PATH = "/v2/models/simple/infer"
IDENTITY = "/v2/models/identity_fp32/infer"
STRINGS = "/v2/models/str_id/infer"
HEADER_LENGTH = "Inference-Header-Content-Length"
WIDTH = 16

_seeds = itertools.count(1)


def link_models(repository: Path, *names: str) -> Path:
    """Make a repository of links to models of the recorded exchanges."""
    repository.mkdir(exist_ok=True)
    for name in names:
        (repository / name).symlink_to(GOLDEN_MODELS / name)
    return repository


def good_document(seed: int = 0) -> dict[str, Any]:
    """A request whose answer has the sums and differences of its numbers."""
    first = list(range(seed, seed + WIDTH))
    return {
        "inputs": [
            {"name": "INPUT0", "datatype": "INT32", "shape": [1, WIDTH], "data": first},
            {"name": "INPUT1", "datatype": "INT32", "shape": [1, WIDTH], "data": [3] * WIDTH},
        ]
    }


def good_body(seed: int = 0) -> bytes:
    return json.dumps(good_document(seed)).encode()


def is_good_answer(answer: bytes, seed: int = 0) -> bool:
    """True if `answer` is the JSON answer to `good_body(seed)`."""
    outputs = json.loads(answer).get("outputs", [])
    first = np.arange(seed, seed + WIDTH)
    return [output["data"] for output in outputs] == [(first + 3).tolist(), (first - 3).tolist()]


def binary_body(sizes: tuple[Any, Any] = (64, 64), tail: bytes | None = None) -> tuple[bytes, dict[str, str]]:
    """A request with binary tensors of the announced `sizes`: body and headers."""
    document = good_document()
    for entry, size in zip(document["inputs"], sizes, strict=True):
        del entry["data"]
        entry["parameters"] = {"binary_data_size": size}
    text = json.dumps(document).encode()
    if tail is None:
        tail = np.arange(WIDTH, dtype="<i4").tobytes() + np.full(WIDTH, 3, "<i4").tobytes()
    return text + tail, {HEADER_LENGTH: str(len(text))}


def raw_post(body: bytes, headers: dict[str, str] | None = None, path: str = PATH) -> bytes:
    """The bytes of a POST request."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"POST {path} HTTP/1.1\r\nHost: a\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def assert_still_serves(server: ServerProcess) -> None:
    """The server runs, and answers a JSON and a binary request with their own numbers."""
    assert server.process.poll() is None, server.log_text()[-2000:]
    seed = next(_seeds)
    status, _, answer = server.request("POST", PATH, good_body(seed))
    assert status == 200, answer
    assert is_good_answer(answer, seed), answer
    body, headers = binary_body()
    status, _, answer = server.request("POST", PATH, body, headers)
    assert status == 200, answer
    assert is_good_answer(answer), answer


def assert_refused(
    server: ServerProcess,
    text: str,
    body: bytes,
    headers: dict[str, str] | None = None,
    *,
    path: str = PATH,
    status: int = 400,
) -> None:
    """`body` must be answered with `status` and an error that contains `text`. The server must serve afterwards."""
    answered, _, answer = server.request("POST", path, body, headers)
    assert (answered, json.loads(answer).keys() - {"hint"}) == (status, {"error"}), answer
    assert text in json.loads(answer)["error"]
    assert_still_serves(server)


def assert_accepted(
    server: ServerProcess, body: bytes, headers: dict[str, str] | None = None, *, path: str = PATH
) -> bytes:
    status, _, answer = server.request("POST", path, body, headers)
    assert status == 200, answer
    return answer


def tensor(content: str, shape: Any = (1, 2), datatype: str = "FP32") -> bytes:
    """A JSON request of the identity model. `content` is the text of its data."""
    head = json.dumps({"name": "INPUT0", "datatype": datatype, "shape": shape})[:-1]
    return f'{{"inputs":[{head},"data":{content}}}]}}'.encode()
