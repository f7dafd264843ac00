"""docs/troubleshooting.md and docs/spec/errors.md are complete and correct: the server's real texts, and every error
class with its statuses.

The tests provoke faults in real parts of the server and look for every quoted text in the output. Texts that need a
crash, a GPU or a cloud are in ONLY_IN_SOURCE; the tests look for them in the source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

import trident
from tests.project import ROOT, pure_python_only
from tests.unit.docs.provoked_texts import provoked_texts
from tests.unit.product_modules import product_modules
from trident.adapters.sagemaker.application import SageMakerApplication
from trident.adapters.vertex.application import VertexApplication
from trident.app.worker.http1 import request as refusal
from trident.core.errors import ServerError
from trident.core.http.application import V2Application

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
ERRORS = (ROOT / "docs" / "spec" / "errors.md").read_text()
ANY = "…"
CELLS = re.compile(r"(?<!\\)\|")
QUOTE = re.compile(r"`([^`]+)`")

# Texts that appear only after a crash, a lost GPU or a race, with a cloud, or on a full disk.
ONLY_IN_SOURCE = {
    "traces cannot be written to …: …",
    "spans cannot be sent to …: …",
    "the directory that HTTP workers and engine share …",
    "Internal - failed to load all models",
    "failed to read repository …",
    "failed to read model '…': …",
    "unable to create TensorRT engine: …",
    "Stub process '…' is not healthy.",
    "bypassing the response cache at …, so every request is executed: …",
    "the response cache at … keeps no more answers: …",
    "the worker (pid …) … and is restarted in … s",
    "the metrics cannot be written to stdout: …",
    "… log lines were dropped because the reader of the log did not keep up",
    "the log cannot be written: …; its events are lost",
    "Server not ready",
    ": the answer is not one of S3",
    "failed to … in … attempts: …",
    "the request was not received in time",
    "Server is stopping, scheduler for model has stopped accepting new inference requests",
    "the engine is not there: …",
    "the inputs '…' of a batch for '…' do not fit together: …",
    "output '…' of '…' has shape … for a batch of …, so that it cannot be divided among the requests",
    "model '…' runs one request at a time, because a trial has shown that its graph does not keep the requests of a "
    "batch apart: …",
    "a trial has shown that the graph does not keep the requests of a batch apart: …; requests that are batched fail, "
    "or get wrong answers",
    "the connection to the engine is lost: …",
    "… cannot be started: …",
    "…: the other engines serve on",
    "an engine has ended while it had to make a change: …",
    "'…' is not the same in all engines now: …",
    "'…' was to be unloaded from an engine that is not there: …",
    "what native libraries print cannot be logged: …",
    "'…' could not be restored: …",
    "the device … can run no more models until the process is replaced",
    "CUDA_VISIBLE_DEVICES is '…', by which CUDA finds no GPU",
    "Exit timeout expired. Exiting immediately.",
    "Model '…' (version …) has … in-flight inferences",
    "model '…' is still being loaded",
}


# --- the page


def rows(page: str, first: str) -> Iterator[list[str]]:
    """The rows of the tables whose first heading is `first`, as cells."""
    inside = False
    for line in page.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in CELLS.split(line)[1:-1]]
        if cells[0] == first:
            inside = True
        elif inside and not set(cells[0]) <= {"-"}:
            yield cells


def quotes(page: str) -> list[str]:
    """The quotes in the tables of messages."""
    return [quote for cells in rows(page, "message") for quote in QUOTE.findall(cells[0])]


def pattern(quote: str) -> re.Pattern[str]:
    return re.compile(".*?".join(re.escape(part) for part in quote.strip(f"{ANY} ").split(ANY)), re.DOTALL)


def is_said(quote: str, text: str) -> bool:
    """Looks for the parts first: the pattern takes the square of the text's length where one is missing."""
    return all(part in text for part in quote.strip(f"{ANY} ").split(ANY)) and pattern(quote).search(text) is not None


# --- the source


@cache
def source_texts() -> str:
    """Every text in the source, one per line, with … in place of inserted values."""
    texts = []
    for package in ("core", "adapters", "app"):
        for path in (ROOT / package).rglob("*.py"):
            texts += [_text(node) for node in ast.walk(ast.parse(path.read_text()))]
    return "\n".join(re.sub(f"{ANY}+", ANY, text) for text in texts)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else ANY for part in node.values)  # type: ignore[misc]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%(\.\d+)?[a-z]|\{\}", ANY, node.value)
    return ""


def in_source(quote: str) -> bool:
    return quote.strip(f"{ANY} ") in source_texts()


# --- the tests


@pytest.fixture(scope="module")
def provoked(tmp_path_factory: pytest.TempPathFactory) -> str:
    return provoked_texts(tmp_path_factory.mktemp("provoked"))


@pytest.mark.slow
def test_the_server_says_every_quoted_message(provoked: str) -> None:
    missing = {quote for quote in quotes(PAGE) if not is_said(quote, provoked)}
    assert missing - ONLY_IN_SOURCE == set()
    assert missing == ONLY_IN_SOURCE


@pytest.mark.slow
@pytest.mark.parametrize("quote", sorted(ONLY_IN_SOURCE))
def test_the_source_contains_the_messages_that_need_a_disaster(quote: str) -> None:
    assert in_source(quote)


def test_a_quote_matches_its_text_and_no_other() -> None:
    assert pattern("model '…' has …").search("model 'm' has 3 in-flight")
    assert not pattern("model '…' has …").search("model m has 3 in-flight")
    assert not in_source("a text that nobody says")


def error_classes() -> set[type[ServerError]]:
    imported = list(product_modules(trident))
    assert imported
    found: list[type[ServerError]] = [ServerError]
    for kind in found:
        found += kind.__subclasses__()
    return {kind for kind in found[1:] if kind.__module__.startswith("trident.")}


def documented_class(kind: type[ServerError]) -> list[str]:
    """The row that the page must have for a class."""
    ports: tuple[type[V2Application], ...] = (V2Application, SageMakerApplication, VertexApplication)
    error = kind.__new__(kind)
    # Neither object is initialised: a status depends only on the class of the error.
    statuses = [str(port.__new__(port).status_of(error)) for port in ports]
    if kind.__module__.startswith("trident.app."):
        statuses = ["start"] * 3
    elif kind.__module__.startswith("trident.core.grpc."):
        statuses = ["gRPC"] * 3
    return [f"`{kind.__name__}`", kind.code.value, *statuses]


@pure_python_only
def test_the_page_lists_every_error_class_with_its_statuses() -> None:
    documented = [(name, *cells[1:]) for cells in rows(ERRORS, "class") for name in cells[0].split(", ")]
    expected = {tuple(documented_class(kind)) for kind in error_classes()}
    assert sorted(documented) == sorted(expected)


def test_the_page_lists_every_status_with_a_meaning_and_a_cure() -> None:
    answered = {int(status) for cells in rows(ERRORS, "class") for status in cells[2:5] if status.isdigit()}
    answered |= set(refusal._REASONS)
    assert {int(cells[0]) for cells in rows(PAGE, "status")} == answered
    for heading in ("message", "what you see"):
        assert [cells for cells in rows(PAGE, heading) if len(cells) != 3 or not all(cells)] == []


# --- trident doctor


def doctor_checks() -> set[str]:
    """The names of the lines that `trident doctor` can print, except services, backends and providers."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "app" / "commands" / "doctor").glob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    places = {"ok": 0, "warning": 0, "failed": 0, "line": 1}
    names = [
        name.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in places
        for name in call.args[places[call.func.attr] :][:1]
        if isinstance(name, ast.Constant)
    ]
    return {str(name) for name in names}


def test_the_page_explains_every_line_of_the_doctor() -> None:
    explained = {quote for cells in rows(PAGE, "line") for quote in QUOTE.findall(cells[0])}
    assert {"clock", "open files"} <= doctor_checks()
    assert doctor_checks() <= explained
