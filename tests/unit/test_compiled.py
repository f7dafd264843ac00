"""The compiled build: docs/compiled.md. The tests of its rules run on both builds, those of what it does on itself."""

from __future__ import annotations

import ast
import importlib
import subprocess
import tomllib
import traceback
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from typing import get_type_hints

import pytest

from app.version import BUILD, IS_COMPILED
from core.engine.protocol import Engine
from core.errors import InvalidRequest
from core.http.v2.json_document import parse_document
from core.remote.calls.serialization import reader_of
from tests.contract.servers.session import TRIDENT
from tests.project import ROOT

TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["trident"]["compiled"]
SOURCES = [path for room in ("core", "adapters", "app") for path in sorted((ROOT / room).rglob("*.py"))]

on_the_compiled_build = pytest.mark.skipif(not IS_COMPILED, reason="`make test-compiled` runs it")


def compiled() -> set[str]:
    places = [ROOT / place for place in TABLE["modules"]]
    found = {path for place in places for path in (place.rglob("*.py") if place.is_dir() else [place])}
    paths = {path.relative_to(ROOT).as_posix() for path in found if path.name != "__init__.py"}
    return paths - TABLE["left-out"].keys()


def module_name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def test_every_place_of_the_table_exists_and_every_module_left_out_has_a_reason() -> None:
    assert [place for place in [*TABLE["modules"], *TABLE["left-out"]] if not (ROOT / place).exists()] == []
    assert all(TABLE["left-out"].values())


def test_no_extension_module_hides_a_source_of_the_checkout() -> None:
    found = [path for room in ("core", "adapters", "app") for path in (ROOT / room).rglob("*.so")]
    assert found == []


def inheritance_breaches(sources: dict[str, str], paths: set[str]) -> Iterator[str]:
    """Classes of interpreted modules whose base is a class of a compiled one: Python refuses to make their objects."""
    modules = {module_name(path) for path in paths}
    for path, source in sources.items():
        if path in paths:
            continue
        tree = ast.parse(source)
        origins = {
            alias.asname or alias.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
                yield from (f"{path}: {node.name}({base})" for base in bases if origins.get(base) in modules)


def test_no_interpreted_class_inherits_from_a_compiled_one() -> None:
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in SOURCES}
    assert list(inheritance_breaches(sources, compiled())) == []


def test_an_interpreted_heir_of_a_compiled_class_is_found() -> None:
    source = "from core.memo import Memo\nclass Mine(Memo[str, int]): ..."
    assert list(inheritance_breaches({"core/mine.py": source}, {"core/memo.py"})) == ["core/mine.py: Mine(Memo)"]


def foreign_bases(path: str) -> Iterator[str]:
    tree = ast.parse((ROOT / path).read_text())
    foreign = {"threading.local", "ChunkedReader", "RawIOBase", "deque", "Flask"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
            yield from (f"{path}: {node.name}({base})" for base in bases & foreign)


def test_no_compiled_class_inherits_from_a_python_class_that_is_not_compiled() -> None:
    # It compiles, and its objects end the process.
    assert [breach for path in sorted(compiled()) for breach in foreign_bases(path)] == []


@on_the_compiled_build
def test_every_module_of_the_table_is_an_extension_module() -> None:
    files = {path: importlib.import_module(module_name(path)).__file__ or "" for path in sorted(compiled())}
    assert [path for path, file in files.items() if not file.endswith(tuple(EXTENSION_SUFFIXES))] == []


@on_the_compiled_build
def test_a_traceback_has_the_lines_of_the_source() -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_document(b"{", binary_follows=False)
    frames = [frame for frame in traceback.extract_tb(raised.tb) if frame.filename.endswith("json_document.py")]
    assert frames
    lines = (ROOT / "core/http/v2/json_document.py").read_text().splitlines()
    assert frames[-1].lineno is not None
    assert "raise" in lines[frames[-1].lineno - 1]
    assert frames[-1].line == lines[frames[-1].lineno - 1].strip()


def test_what_the_engine_answers_can_be_sent_to_another_process() -> None:
    # A compiled dataclass has lost the arguments of its fields' types, by which its values are read.
    for method in (Engine.model_statistics, Engine.metrics, Engine.model_spec, Engine.server_metadata):
        reader_of(get_type_hints(method)["return"])


def test_version_says_which_build_it_is() -> None:
    run = subprocess.run([TRIDENT, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.endswith(f"({BUILD})\n")
