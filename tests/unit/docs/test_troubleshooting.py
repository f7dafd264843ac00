"""docs/troubleshooting.md and docs/spec/errors.md are complete and correct: the texts of the source, and every error
class with its statuses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

import trident
from tests.project import ROOT, product_modules, pure_python_only
from trident.adapters.sagemaker.application import SageMakerApplication
from trident.adapters.vertex.application import VertexApplication
from trident.core.errors import ServerError
from trident.core.http.application import V2Application

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
ERRORS = (ROOT / "docs" / "spec" / "errors.md").read_text()
ANY = "…"
CELLS = re.compile(r"(?<!\\)\|")
QUOTE = re.compile(r"`([^`]+)`")

# Messages that the server puts together, and the texts of the source in them.
ASSEMBLED = {
    "the engine was ended by SIGKILL and is restarted in … s": ["was ended by …", "and is restarted in … s"],
    "the engine was ended by SIGSEGV and is restarted in … s": ["was ended by …", "and is restarted in … s"],
    "the engine ended with status … and is restarted in … s": ["ended with status …", "and is restarted in … s"],
    '"phase":"engine_down"': ["phase", "engine_down"],
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


# --- the source


@cache
def source_texts() -> str:
    """Every text in the source, one per line, with … in place of inserted values."""
    texts = []
    for package in ("core", "adapters", "app", "tools"):
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


@pytest.mark.slow
def test_the_source_has_every_quoted_message() -> None:
    assert ASSEMBLED.keys() <= set(quotes(PAGE))
    assert [text for quote in quotes(PAGE) for text in ASSEMBLED.get(quote, [quote]) if not in_source(text)] == []
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


def test_every_message_has_a_meaning_and_a_cure() -> None:
    for heading in ("message", "what you see"):
        assert [cells for cells in rows(PAGE, heading) if len(cells) != 3 or not all(cells)] == []
