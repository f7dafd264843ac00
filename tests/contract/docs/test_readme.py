"""The README's requests, sent to the real server: the answers must be those of the README.

An example is a block of bash that calls curl, or a block of Python. The next block is its answer.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT

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


README = (ROOT / "README.md").read_text()
EXAMPLES = examples(README)


def same(answer: str, expected: str) -> bool:
    """Whether they are equal except for white space and the last digits of numbers."""
    answer, expected = ("".join(text.split()) for text in (answer, expected))
    if NUMBER.sub("#", answer) != NUMBER.sub("#", expected):
        return False
    pairs = zip(NUMBER.findall(answer), NUMBER.findall(expected), strict=True)
    return all(abs(float(one) - float(other)) <= TOLERANCE for one, other in pairs)


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


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.label)
def test_example_answers_as_written(example: Example, server: ServerProcess) -> None:
    if example.language == "bash" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    answer = run(example.at({ADDRESS: server.address, GRPC_ADDRESS: f"{HOST}:{server.grpc_port}"}))
    assert same(answer, example.answer), answer


def test_readme_shows_every_kind_of_call() -> None:
    texts = [example.text for example in EXAMPLES]
    assert any("curl" in text and "/infer" in text for text in texts)
    for client in ("tritonclient.http", "tritonclient.grpc as", "tritonclient.grpc.aio", "async_stream_infer"):
        assert any(client in text for text in texts)
    assert any("@deploy/digits/" in text for text in texts)
    assert all(ADDRESS in text or GRPC_ADDRESS in text for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("digit", range(10))
def test_shipped_picture_is_classified_right(digit: int, server: ServerProcess) -> None:
    body = (ROOT / "deploy" / "digits" / f"{digit}.json").read_bytes()
    status, _, answer = server.request("POST", "/v2/models/digits/infer", body)
    assert status == 200, answer
    label = (ROOT / "deploy" / "models" / "digits" / "labels.txt").read_text().split()[digit]
    assert re.search(rb'"data":\["[\d.]+:%d:%s"' % (digit, label.encode()), answer), answer


@pytest.mark.parametrize(
    ("answer", "expected", "equal"),
    [
        ('{"data":[1,2]}', '{"data": [1, 2]}\n', True),
        ('["0.990898:6:six"]', '["0.990897:6:six"]', True),
        ('["0.990898:6:six"]', '["0.990897:5:six"]', False),
        ('["0.990898:6:six"]', '["0.990897:6:sic"]', False),
        ("[1,2]", "[1,2,3]", False),
    ],
)
def test_answers_are_compared_by_value(answer: str, expected: str, equal: bool) -> None:
    assert same(answer, expected) is equal
