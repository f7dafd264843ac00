"""Random requests: each is answered in time, and never with an error of the server."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import struct
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from tests.contract.servers.ports import HOST
from tests.contract.servers.processes import workers_of
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import (
    HEADER_LENGTH,
    PATH,
    assert_still_serves,
    binary_body,
    good_body,
    link_models,
    raw_post,
)
from tests.fuzzing import bounded

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

PATIENCE_S = 30.0
STATUSES = frozenset({200, 400, 404, 405, 501, 503})
HEAD_STATUSES = STATUSES | {414, 417, 431}
MODELS = ("simple", "identity_fp32", "str_id", "cls", "id_bool", "id_fp16", "id_int64", "id_uint8", "auto_nobatch")

Post = Callable[..., None]


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("fuzz")
    set_hypothesis_home_dir(folder / "hypothesis")
    repository = link_models(folder / "models", *MODELS)
    with ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0") as running:
        workers = workers_of(running)
        yield running
        assert workers_of(running) == workers, "a process was restarted"
        assert "Traceback" not in running.log_text()


@pytest.fixture(autouse=True)
def _serves_afterwards(server: ServerProcess) -> Iterator[None]:
    yield
    assert_still_serves(server)


@pytest.fixture
def post(server: ServerProcess) -> Iterator[Post]:
    """Send a request over one connection and check its answer."""
    connection = http.client.HTTPConnection(HOST, server.http_port, timeout=PATIENCE_S)

    def send(body: bytes, headers: dict[str, str] | None = None, *, path: str = PATH, method: str = "POST") -> None:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name, value.encode("latin-1"))
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        with connection.getresponse() as response:
            check(response.status, response.headers, response.read(), is_infer=path.endswith("infer"))

    yield send
    connection.close()


def check(status: int, headers: http.client.HTTPMessage, answer: bytes, *, is_infer: bool) -> None:
    """An error is JSON with a text; a success names the model."""
    assert status in STATUSES, (status, answer)
    if headers["Content-Encoding"]:
        answer = zlib.decompress(answer, zlib.MAX_WBITS | 32)  # of either kind
    if status != 200:
        document = json.loads(answer.removeprefix(b"data: "))
        assert document.keys() - {"hint"} == {"error"}
        assert isinstance(document["error"], str)
    elif is_infer:
        text = answer[: int(headers.get(HEADER_LENGTH, len(answer)))]
        assert json.loads(text.decode("utf-8", "surrogateescape"))["model_name"] in MODELS


# --- strategies


EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 8), st.binary(max_size=8)), min_size=1, max_size=4
)  # the position, the number of removed bytes, the inserted bytes


def edited(body: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    for where, gone, come in edits:
        at = int(where * len(body))
        body = body[:at] + come + body[at + gone :]
    return body


def string_body() -> tuple[bytes, dict[str, str]]:
    content = b"".join(struct.pack("<I", len(text)) + text for text in (b"one\0", "\xfftwo".encode()))
    entry = {"name": "IN", "datatype": "BYTES", "shape": [1, 2], "parameters": {"binary_data_size": len(content)}}
    text = json.dumps({"inputs": [entry], "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}).encode()
    return text + content, {HEADER_LENGTH: str(len(text))}


GOOD: list[tuple[str, bytes, dict[str, str]]] = [
    (PATH, good_body(), {}),
    (PATH, b" " * 1500 + good_body(), {}),
    (PATH, *binary_body()),
    (PATH, gzip.compress(good_body(), mtime=0), {"Content-Encoding": "gzip"}),
    (PATH, zlib.compress(good_body()), {"Content-Encoding": "deflate"}),
    ("/v2/models/str_id/infer", *string_body()),
    ("/v2/models/identity_fp32/infer", np.arange(8, dtype="<f4").tobytes(), {HEADER_LENGTH: "0"}),
]

# --- the tests


@bounded(300)
@given(good=st.sampled_from(GOOD), edits=EDITS)
def test_damaged_requests_are_answered(
    post: Post, good: tuple[str, bytes, dict[str, str]], edits: list[tuple[float, int, bytes]]
) -> None:
    path, body, headers = good
    post(edited(body, edits), headers, path=path)


@bounded(300)
@given(
    raw=st.binary(max_size=200)
    | st.builds(edited, st.sampled_from([raw_post(body, headers, path) for path, body, headers in GOOD]), EDITS)
)
def test_any_bytes_on_the_connection_end_it_or_are_answered(server: ServerProcess, raw: bytes) -> None:
    """Only an incomplete request may have no answer. The connection always ends."""
    with socket.create_connection((HOST, server.http_port), timeout=PATIENCE_S) as client:
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while part := client.recv(65536):
            answer += part
    if answer:
        assert answer.startswith(b"HTTP/1.")
        assert int(answer[9:12]) in HEAD_STATUSES, answer
