"""The routes of a container that a redirect and an invoke route prefix reach, and the requests of docs/vertex.md.

Source: docs/spec/vertex.md sections A3 (invoke), B3, D points 9 and 11. The tables of all routes and spellings are
tested without a server; here are the ways through the socket and to a real model.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from tests.contract.docs.test_pages import Example, examples, run, same
from tests.contract.lifecycle.changing_models import add_scaled
from tests.contract.platforms.container import LIMIT_S
from tests.contract.servers.ports import HOST
from tests.contract.vertex.vertex_container import PREDICT, VertexContainer
from tests.needed import program
from tests.project import ROOT

pytestmark = pytest.mark.slow

CONTROL = "v2/repository/models/cat/unload"


@pytest.fixture(scope="module")
def running(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexContainer]:
    """A container whose model a request could unload."""
    folder = tmp_path_factory.mktemp("container")
    add_scaled(folder / "models", "cat", 3)
    with VertexContainer(folder, folder / "models", "--model-control-mode=explicit", "--load-model=*") as made:
        yield made


@pytest.fixture
def container(running: VertexContainer) -> Iterator[VertexContainer]:
    """After each test the model is still loaded."""
    yield running
    assert running.predictions([[1, 2, 3, 4]]) == [[3, 6, 9, 12]]


@pytest.mark.parametrize(
    "lines",
    [
        [b"X-Vertex-Ai-Triton-Redirect: "],
        [b"X-Vertex-Ai-Triton-Redirect: v2/repository/models/cat/%75nload"],
        [b"X-Vertex-Ai-Triton-Redirect: v2/models/../repository/models/cat/unload"],
        [b"X-Vertex-Ai-Triton-Redirect: v2/repository/models/cat/unload\tx"],
        [b"X-Vertex-Ai-Triton-Redirect: v2/repository/models/cat/unloa\xe4"],
        [b"X-Vertex-Ai-Triton-Redirect: v2/repository/models/cat/unload\xc2\xa0"],
        [b"X-Vertex-Ai-Triton-Redirect: v2", b"X-Vertex-Ai-Triton-Redirect: " + CONTROL.encode()],
        [b"X-Vertex-Ai-Triton-Redirect: v2/models/cat", b"x-vertex-ai-triton-redirect: v2/models/cat"],
        # A name with underscores is another header.
        [b"X_Vertex_Ai_Triton_Redirect: " + CONTROL.encode()],
    ],
)
def test_redirect_header_never_reaches_a_control_route(container: VertexContainer, lines: list[bytes]) -> None:
    head = [b"POST " + PREDICT.encode() + b" HTTP/1.1", b"Host: x", b"Content-Length: 2", b"Connection: close", *lines]
    with socket.create_connection((HOST, container.port), LIMIT_S) as connection:
        connection.sendall(b"\r\n".join([*head, b"", b"{}"]))
        assert connection.recv(65536).split()[1] == b"400"


# --- the requests of docs/vertex.md, sent to the container that its first command starts


DOCUMENT = (ROOT / "docs" / "vertex.md").read_text()
EXAMPLES = examples(DOCUMENT)
_COMMAND = re.compile(r"```bash\n(AIP_MODE=.*?trident serve.*?)\n```", re.DOTALL)


@pytest.fixture(scope="module")
def documented(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexContainer]:
    (command,) = _COMMAND.findall(DOCUMENT)
    variables, _, arguments = command.replace("\\\n", "").partition("trident serve")
    given = dict(word.split("=", 1) for word in variables.split())
    assert given.pop("AIP_HTTP_PORT") == "8080"  # another program may use this port here
    storage = ROOT / given.pop("AIP_STORAGE_URI")
    folder = tmp_path_factory.mktemp("container")
    made = VertexContainer(folder, storage, *arguments.split(), probe=given["AIP_HEALTH_ROUTE"], **given)
    with made:
        yield made


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.label)
def test_example_answers_as_written(example: Example, documented: VertexContainer) -> None:
    program("curl", "apt install curl")
    answer = run(example.at({"localhost:8080": f"{HOST}:{documented.port}"}))
    assert same(answer, example.answer), answer


def test_document_shows_every_kind_of_call() -> None:
    texts = [example.text for example in EXAMPLES]
    assert sum('"instances"' in text for text in texts) == 4
    assert sum("X-Vertex-Ai-Triton-Redirect" in text for text in texts) == 1
    assert sum("text/csv" in text for text in texts) == 1
    assert all("localhost:8080/predict" in text for text in texts)
