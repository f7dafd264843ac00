"""The requests of the README and of the guides, sent to one server of their models: the answers are those written.

An example is a block of bash that calls curl, or a block of Python. The next block is its answer.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.contract.emulators.vertex_emulator import VertexEmulator
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import ServerProcess
from tests.needed import program
from tests.project import ROOT
from tests.waiting import until

ADDRESS = "localhost:8000"
GRPC_ADDRESS = "localhost:8001"
LIMIT_S = 60
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
# The last digits of a probability differ between processors.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Example:
    language: str
    text: str
    answer: str

    @property
    def label(self) -> str:
        return f"{self.language}: {self.text.splitlines()[0][:60]}"

    def at(self, addresses: Mapping[str, str]) -> Example:
        """The example with the addresses of running servers in place of those that it names."""
        text = self.text
        for written, real in addresses.items():
            text = text.replace(written, real)
        return replace(self, text=text)


def examples(markdown: str) -> list[Example]:
    blocks = BLOCK.findall(markdown)
    found = []
    for (language, text), (answer_language, answer) in itertools.pairwise(blocks):
        is_call = language == "python" or (language == "bash" and "curl " in text)
        if is_call and answer_language in {"json", "text"}:
            found.append(Example(language, text, answer))
    return found


def same(answer: str, expected: str) -> bool:
    """True if they are equal except for white space and the last digits of numbers."""
    answer, expected = ("".join(text.split()) for text in (answer, expected))
    if NUMBER.sub("#", answer) != NUMBER.sub("#", expected):
        return False
    pairs = zip(NUMBER.findall(answer), NUMBER.findall(expected), strict=True)
    return all(abs(float(one) - float(other)) <= TOLERANCE for one, other in pairs)


def write_model(markdown: str, version: Path) -> None:
    """The model of a document, whose first block of protobuf is its configuration and whose first Python its code."""
    files = dict(reversed(BLOCK.findall(markdown)))
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(files["protobuf"])
    (version / "model.py").write_text(files["python"])


def assert_answers(example: Example, server: ServerProcess) -> None:
    """Run the example against `server`: it must answer as written."""
    if example.language == "bash":
        program("curl", "apt install curl")
    answer = run(example.at({ADDRESS: server.address, GRPC_ADDRESS: f"{HOST}:{server.grpc_port}"}))
    assert same(answer, example.answer), answer


def run(example: Example) -> str:
    """Run the example. Returns its output."""
    command = ["bash", "-euc", example.text] if example.language == "bash" else [sys.executable, "-c", example.text]
    # No proxy between two processes on loopback.
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    finished = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


# --- the pages

PYTHON_MODELS = (ROOT / "docs" / "python-models.md").read_text()
GENERATE = (ROOT / "docs" / "streams.md").read_text().partition("## WebSocket")[0]
PAGES = {
    **{
        name: (ROOT / name).read_text()
        for name in ("README.md", "docs/grpc.md", "docs/examples.md", "docs/sequences.md", "docs/shared-memory.md")
    },
    "docs/python-models.md": PYTHON_MODELS,
    "docs/streams.md": GENERATE,
}
CALLS = [
    pytest.param(example, id=f"{name} {example.label}")
    for name, page in PAGES.items()
    for example in examples(page)
    if ADDRESS in example.text or GRPC_ADDRESS in example.text
]
SHARED_MEMORY = [each for each in examples(PAGES["docs/shared-memory.md"]) if ADDRESS in each.text]
LIBRARY = [each for each in examples((ROOT / "docs" / "library.md").read_text()) if each.language == "python"]


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of the shipped models, the examples, and the models that the pages write."""
    folder = tmp_path_factory.mktemp("pages")
    write_model(PYTHON_MODELS, folder / "models" / "ratio" / "1")
    write_model(PYTHON_MODELS.partition("## Iterations")[2], folder / "models" / "countdown" / "1")
    write_model(GENERATE, folder / "models" / "words" / "1")
    for path in (*(ROOT / "deploy" / "models").iterdir(), *(ROOT / "deploy" / "examples").iterdir()):
        if path.is_dir():
            (folder / "models" / path.name).symlink_to(path)
    options = ("--shutdown-grace-secs=0", "--allow-client-shm=true")
    with ServerProcess(folder / "models", folder / "log", *options) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("example", CALLS)
def test_example_answers_as_written(example: Example, server: ServerProcess) -> None:
    assert_answers(example, server)


@pytest.mark.slow
def test_shared_memory_example_works_over_grpc(server: ServerProcess) -> None:
    (example,) = SHARED_MEMORY
    over_grpc = example.text.replace("tritonclient.http", "tritonclient.grpc").replace(ADDRESS, GRPC_ADDRESS)
    assert_answers(replace(example, text=over_grpc), server)


@pytest.mark.slow
@pytest.mark.parametrize("example", LIBRARY, ids=lambda example: example.label)
def test_example_of_the_library_prints_the_documented_output(example: Example) -> None:
    answer = run(example)
    assert same(answer, example.answer), answer


def test_pages_show_every_kind_of_call() -> None:
    texts = "\n".join(example.text for name, page in PAGES.items() for example in examples(page))
    libraries = ("tritonclient.http", "tritonclient.grpc as")
    calls = ("curl -s ", "curl -sN ", "/infer", "@deploy/digits/", "words/generate ", "async_stream_infer")
    assert [each for each in (*libraries, *calls) if each not in texts] == []
    assert len([each for each in examples(PYTHON_MODELS) if ADDRESS in each.text]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("digit", range(10))
def test_shipped_picture_is_classified_correctly(digit: int, server: ServerProcess) -> None:
    body = (ROOT / "deploy" / "digits" / f"{digit}.json").read_bytes()
    status, _, answer = server.request("POST", "/v2/models/digits/infer", body)
    assert status == 200, answer
    label = (ROOT / "deploy" / "models" / "digits" / "labels.txt").read_text().split()[digit]
    assert re.search(rb'"data":\["[\d.]+:%d:%s"' % (digit, label.encode()), answer), answer


# --- docs/tracing.md: its commands trace a request to the ensemble of the examples, and show the tree of the page

TRACING = BLOCK.findall((ROOT / "docs" / "tracing.md").read_text())
TRACE_FILE = "/tmp/trace.json"


def names(tree: str) -> list[str]:
    """The branches and names of the lines, without durations and bars."""
    return [re.split(r"  +[0-9.]+ ms", line)[0].rstrip() for line in tree.splitlines()]


@pytest.mark.slow
def test_the_commands_of_the_page_on_tracing_show_its_tree(http_workers: str, tmp_path: Path) -> None:
    program("curl", "apt install curl")
    start, switch, infer, show, *_ = [text for language, text in TRACING if language == "bash"]
    (tree,) = [text for language, text in TRACING if language == "text"]
    file = tmp_path / "trace.json"
    options = start.replace(TRACE_FILE, str(file)).split()[3:]
    with ServerProcess(ROOT / "deploy" / "examples", tmp_path / "log", *options, "--shutdown-grace-secs=0") as server:
        for command in (switch, infer):
            run = ["bash", "-c", command.replace(ADDRESS, server.address)]
            answer = subprocess.run(run, check=True, capture_output=True, text=True, timeout=60).stdout
            assert '"error"' not in answer
        until(lambda: file.exists() and file.stat().st_size, "nothing was written")
        command_line = [sys.executable, "-m", "trident.app", *show.split()[1:-1], str(file)]
        shown = subprocess.run(command_line, check=True, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert names(shown.stdout) == names(tree)


# --- docs/vertex.md: the calls of the emulated platform, with Google's SDK

VERTEX = (ROOT / "docs" / "vertex.md").read_text()
VERTEX_ADDRESSES = ("http://127.0.0.1:8199", "127.0.0.1:PORT")
VERTEX_COMMAND = "trident emulate vertex deploy/models --port=8199 -- --vertex-ai-default-model=simple"


@pytest.mark.slow
def test_the_calls_of_the_emulated_platform_are_answered(shipped_models: Path, tmp_path: Path) -> None:
    blocks = [text for language, text in BLOCK.findall(VERTEX) if language == "python"]
    calls = [text for address in VERTEX_ADDRESSES for text in blocks if address in text]
    assert (VERTEX_COMMAND in VERTEX, len(calls)) == (True, 2)
    (port,) = free_ports(1)
    arguments = ("--vertex-ai-default-model=simple", "--allow-grpc=true", f"--grpc-port={port}")
    with VertexEmulator(tmp_path, shipped_models, f"--grpc-port={port}", "--", *arguments) as emulator:
        until(lambda: "gRPC calls are" in emulator.text())
        for text in calls:
            for written, real in zip(VERTEX_ADDRESSES, (emulator.url, emulator.grpc_address), strict=True):
                text = text.replace(written, real)
            exec(text, {})
        assert emulator.end() == 0, emulator.text()
