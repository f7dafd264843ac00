"""What runs in a model's interpreter can be read by Python 3.9 and needs nothing but numpy."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.project import ROOT

STUB = ROOT / "core" / "backends" / "python" / "stub"
SHARED = [ROOT / "core" / "interprocess" / name for name in ("frames.py", "shared_memory.py")]
FILES = [*sorted(STUB.rglob("*.py")), *SHARED]
# Modules that came to the standard library after 3.9, and names in older ones that did.
TOO_NEW = {"tomllib", "wsgiref.types", "typing.Self", "typing.TypeAlias", "typing.ParamSpec", "enum.StrEnum"}
TOO_NEW |= {"datetime.UTC", "itertools.pairwise", "itertools.batched", "asyncio.TaskGroup", "asyncio.timeout"}
NOT_IN_THE_STUB = {"TYPE_CHECKING", "TYPE_CHECKING or __package__ != 'trident_stub'"}
OWN = {"trident_stub", "c_python_backend_utils", "numpy"}


def imported(tree: ast.AST) -> set[str]:
    """What the module imports while it runs, as dotted names; relative ones are the package's own."""
    elsewhere = {
        id(line)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in NOT_IN_THE_STUB
        for line in node.body
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in elsewhere:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_python_3_9_can_read_it(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_needs_nothing_of_the_project(path: Path) -> None:
    names = imported(ast.parse(path.read_text()))
    assert {name.split(".")[0] for name in names} - OWN <= set(sys.stdlib_module_names)
    assert not names & TOO_NEW


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_annotations_are_not_evaluated(path: Path) -> None:
    tree = ast.parse(path.read_text())
    annotated = any(isinstance(node, (ast.FunctionDef, ast.AnnAssign)) for node in ast.walk(tree))
    assert not annotated or "from __future__ import annotations" in path.read_text()


def test_what_is_too_new_is_seen() -> None:
    with pytest.raises(SyntaxError):
        ast.parse("match x:\n    case 1: pass", feature_version=(3, 9))
    assert imported(ast.parse("from datetime import UTC\nimport a.b\nfrom . import c")) == {"datetime.UTC", "a.b"}
