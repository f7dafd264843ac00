"""The examples of a document: a block of bash that calls curl, or a block of Python. The next block is its answer."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

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


def same(answer: str, expected: str) -> bool:
    """Whether they are equal except for white space and the last digits of numbers."""
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
    if example.language == "bash" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
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
