"""The compiled build: docs/compiled.md. The tests of its rules run on both builds, those of what it does on itself."""

from __future__ import annotations

import ast
import importlib
import signal
import subprocess
import sys
import threading
import tomllib
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import EnumMeta
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from io import RawIOBase
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Protocol, get_type_hints

import pytest

import trident
from tests.contract.servers.session import TRIDENT
from tests.needed import program
from tests.project import ROOT
from trident.app.version import BUILD, IS_COMPILED
from trident.core.engine.protocol import Engine
from trident.core.errors import BackendFailed, InvalidRequest
from trident.core.http.v2_json import parse_document
from trident.core.remote.calls import reader_of
from trident.core.scheduling.run_once import CollectedAnswer

TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["trident"]["compiled"]
SOURCES = [path for room in ("core", "adapters", "app", "tools") for path in sorted((ROOT / room).rglob("*.py"))]

on_the_compiled_build = pytest.mark.skipif(not IS_COMPILED, reason="`make test-compiled` runs it")


@cache
def compiled() -> frozenset[str]:
    places = [ROOT / place for place in TABLE["modules"]]
    found = {path for place in places for path in (place.rglob("*.py") if place.is_dir() else [place])}
    paths = {path.relative_to(ROOT).as_posix() for path in found if path.name != "__init__.py"}
    return frozenset(paths - TABLE["left-out"].keys())


def module_name(path: str) -> str:
    return "trident." + path.removesuffix(".py").replace("/", ".")


def test_every_path_of_the_table_exists_and_every_excluded_module_has_a_reason() -> None:
    assert [place for place in [*TABLE["modules"], *TABLE["left-out"]] if not (ROOT / place).exists()] == []
    assert all(TABLE["left-out"].values())


def test_no_extension_module_hides_a_source_of_the_checkout() -> None:
    found = [path for room in ("core", "adapters", "app", "tools") for path in (ROOT / room).rglob("*.so")]
    assert found == []


def inheritance_breaches(sources: dict[str, str], paths: Iterable[str]) -> Iterator[str]:
    """Classes of interpreted modules whose base is a class of a compiled one: Python refuses to make their objects."""
    modules = {module_name(path) for path in paths}
    opened = {
        node.name
        for path in paths
        for node in ast.walk(ast.parse(sources.get(path, "")))
        if isinstance(node, ast.ClassDef) and "mypyc_attr" in "".join(map(ast.unparse, node.decorator_list))
    }
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
                bases = {ast.unparse(base).partition("[")[0] for base in node.bases} - opened
                yield from (f"{path}: {node.name}({base})" for base in bases if origins.get(base) in modules)


@pytest.mark.slow
def test_no_interpreted_class_inherits_from_a_compiled_one() -> None:
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in SOURCES}
    assert list(inheritance_breaches(sources, compiled())) == []
    heir = {"core/mine.py": "from trident.core.memo import Memo\nclass Mine(Memo[str, int]): ..."}
    assert list(inheritance_breaches(heir, {"core/memo.py"})) == ["core/mine.py: Mine(Memo)"]


# What mypyc gives a compiled class as a base besides compiled ones: it knows how these lie in memory.
BUILT_IN_BASES = (object, dict, Generic, Protocol)
# Classes of these metaclasses stay Python classes, whatever their bases are.
PYTHON_METACLASSES = (EnumMeta,)


def classes_of(module: ModuleType) -> Iterator[type[Any]]:
    """The classes that a module defines, in no class or function."""
    yield from (each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__)


def foreign_bases(kind: type[Any], modules: set[str]) -> Iterator[str]:
    """The bases of a compiled class that are neither compiled nor known to mypyc."""
    # A named tuple stays a Python class as well; a compiled module does not say what its bases were.
    if isinstance(kind, PYTHON_METACLASSES) or (kind.__bases__ == (tuple,) and hasattr(kind, "_fields")):
        return
    for base in kind.__bases__:
        is_exception = base.__module__ == "builtins" and issubclass(base, BaseException)
        if base.__module__ not in modules and base not in BUILT_IN_BASES and not is_exception:
            yield f"{kind.__module__}: {kind.__name__}({base.__module__}.{base.__name__})"


def test_no_compiled_class_inherits_from_one_that_is_not_compiled() -> None:
    # It compiles, and its objects may end the process.
    modules = {module_name(path) for path in compiled()}
    found = [
        breach
        for name in sorted(modules)
        for kind in classes_of(importlib.import_module(name))
        for breach in foreign_bases(kind, modules)
    ]
    assert found == []
    for base in (threading.local, deque, RawIOBase):
        mine = type("Mine", (base,), {"__module__": "trident.core.mine"})
        assert [each.partition(": ")[0] for each in foreign_bases(mine, set())] == ["trident.core.mine"]


def attributes_and_properties(tree: ast.ClassDef) -> tuple[set[str], set[str]]:
    """The names of a class that are attributes of its objects, and those that are properties."""
    properties = {
        each.name
        for each in tree.body
        if isinstance(each, ast.FunctionDef) and any(ast.unparse(mark) == "property" for mark in each.decorator_list)
    }
    declared = {
        each.target.id for each in tree.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    assigned = {
        each.attr
        for each in ast.walk(tree)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self"
    }
    return (declared | assigned) - properties, properties


def replaced_attributes(kinds: Iterable[type[Any]], trees: dict[tuple[str, str], ast.ClassDef]) -> Iterator[str]:
    """Properties of compiled classes in the place of attributes that their compiled bases have."""
    for kind in kinds:
        tree = trees.get((kind.__module__, kind.__name__))
        if tree is None:
            continue
        _, properties = attributes_and_properties(tree)
        for base in kind.__mro__[1:]:
            of_base = trees.get((base.__module__, base.__name__))
            # A protocol declares what its heirs have, in whatever way.
            if of_base is not None and Protocol not in base.__bases__:
                attributes, _ = attributes_and_properties(of_base)
                yield from (f"{kind.__name__}.{name} of {base.__name__}" for name in sorted(properties & attributes))


def test_no_compiled_class_replaces_an_attribute_by_a_property() -> None:
    # Compiled code reads the attribute's place in the object, where nothing is.
    paths = sorted(compiled())
    trees = {
        (module_name(path), node.name): node
        for path in paths
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    kinds = [kind for path in paths for kind in classes_of(importlib.import_module(module_name(path)))]
    assert list(replaced_attributes(kinds, trees)) == []
    wrong = ast.parse("class Base:\n    name: str\nclass Heir(Base):\n    @property\n    def name(self): ...")
    trees = {(__name__, node.name): node for node in wrong.body if isinstance(node, ast.ClassDef)}
    base = type("Base", (), {"__module__": __name__})
    heir = type("Heir", (base,), {"__module__": __name__})
    assert list(replaced_attributes([base, heir], trees)) == ["Heir.name of Base"]


def python_only_objects(source: str) -> Iterator[str]:
    """Yield the operations of a module that objects of compiled classes do not allow."""
    modules = {module_name(path) for path in compiled()}
    tree = ast.parse(source)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    origins = {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value == "__weakref__":
            yield "has __weakref__ in its slots"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".__new__"):
            made = {ast.unparse(each) for each in node.args[:1]}
            yield from (f"makes {each} without its constructor" for each in made if each in own | {"cls"})
            yield from (f"makes {each} without its constructor" for each in made if origins.get(each) in modules)
        elif isinstance(node, ast.ImportFrom) and node.module == "copy":
            yield "imports from copy"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("copy.copy", "copy.deepcopy"):
            yield f"uses {ast.unparse(node)}"


def calls_in_slices(source: str) -> Iterator[str]:
    """Bounds of slices that do something: of what is neither a list, tuple, text nor bytes they are evaluated twice."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Slice):
            for bound in ast.walk(node):
                if isinstance(bound, ast.Call) and ast.unparse(bound.func) not in ("len", "min", "max", "int"):
                    yield ast.unparse(node)


def uncallable_bases(sources: dict[str, str]) -> Iterator[str]:
    """Classes with `__call__` whose compiled base has none: their objects have another layout than the base expects."""
    classes = {
        (module_name(path), node.name): node
        for path, source in sources.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    }
    callable_names = {name for (_, name), node in classes.items() if "__call__" in methods_of(node)}
    names = {name for _, name in classes}
    for (module, name), node in classes.items():
        bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
        if name in callable_names and "Protocol" not in bases:
            yield from (f"{module}: {name}({base})" for base in (bases & names) - callable_names)


def methods_of(node: ast.ClassDef) -> set[str]:
    return {each.name for each in node.body if isinstance(each, ast.FunctionDef)}


def test_callable_compiled_class_has_a_callable_base() -> None:
    assert list(uncallable_bases({path: (ROOT / path).read_text() for path in sorted(compiled())})) == []
    wrong = "class Base: ...\nclass Mine(Base):\n    def __call__(self) -> None: ..."
    assert list(uncallable_bases({"core/mine.py": wrong})) == ["trident.core.mine: Mine(Base)"]


def compared_tuples(source: str) -> Iterator[str]:
    """Comparisons by identity with a name that is annotated as a tuple: in C, a value that is never the same."""
    tree = ast.parse(source)
    tuples = {
        ast.unparse(node.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith("tuple[")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops):
            operands = {ast.unparse(each) for each in (node.left, *node.comparators)}
            if tuples & operands and "None" not in operands:
                yield ast.unparse(node)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (
            python_only_objects,
            [
                "class A:\n    __slots__ = ('__weakref__',)",
                "class A: ...\nmade = object.__new__(A)",
                "from trident.core.memo import Memo\nmade = Memo.__new__(Memo)",
                "import copy\ncopy.copy(a)",
                "from copy import deepcopy",
            ],
        ),
        (calls_in_slices, ["view[: sock.recv_into(view)]\nview[: len(part)]"]),
        (compared_tuples, ["UNKNOWN: tuple[int, int] = (0, 0)\nknown = found is not UNKNOWN"]),
    ],
)
def test_compiled_modules_avoid_constructs_that_mypyc_changes(
    check: Callable[[str], Iterator[str]], wrong: list[str]
) -> None:
    assert [(path, each) for path in sorted(compiled()) for each in check((ROOT / path).read_text())] == []
    assert [len(list(check(source))) for source in wrong] == [1] * len(wrong)


@on_the_compiled_build
def test_every_module_of_the_table_is_an_extension_module() -> None:
    files = {path: importlib.import_module(module_name(path)).__file__ or "" for path in sorted(compiled())}
    assert [path for path, file in files.items() if not file.endswith(tuple(EXTENSION_SUFFIXES))] == []


@on_the_compiled_build
def test_the_wheel_has_one_top_level_name() -> None:
    names = {path.name for path in Path(trident.__file__).parent.parent.iterdir()}
    # The one beside it is what mypyc's modules share.
    assert {name for name in names if not name.endswith((".dist-info", *EXTENSION_SUFFIXES))} == {"trident"}


def test_finalizer_of_an_old_value_sees_the_new_value() -> None:
    # mypyc ends the old value first, and then whoever reads the attribute gets an object that is no more.
    answer, seen = CollectedAnswer(), []
    note: Any = answer.note

    class LooksAtItsEnd:
        def __del__(self) -> None:
            seen.append(type(answer._answer))

    note([LooksAtItsEnd()], False)
    note(BackendFailed("too late"), True)
    assert seen == [BackendFailed]


HOLDER = """
class Holder:
    def __init__(self, value: object) -> None:
        self.value = value

    def put(self, value: object) -> None:
        self.value = value
"""
READ_AT_THE_END = """
from holder import Holder

class LooksAtItsEnd:
    def __del__(self):
        print(type(holder.value).__name__)

holder = Holder([LooksAtItsEnd()])
holder.put({})
"""
BUILD_SCRIPT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import setuptools
from mypyc.build import mypycify
import setup

folder = str(setup.MYPYC_FILES)
(made,) = mypycify(["holder.py"], target_dir=folder, opt_level="0", debug_level="0")
made.include_dirs.append(folder)
if sys.argv.pop() == "changed":
    made.sources = [setup.store_before_release(source)[0] for source in made.sources]
sys.argv[1:] = ["--quiet", "build_ext", "--inplace"]
setuptools.setup(ext_modules=[made])
"""


@pytest.mark.slow
def test_setup_prevents_the_crash_of_generated_code(tmp_path: Path) -> None:
    # Once it does not crash unchanged, mypyc stores first, and RELEASE_AND_STORE of setup.py may go.
    program("gcc", "apt install gcc")
    runs = {}
    for kind in ("unchanged", "changed"):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "holder.py").write_text(HOLDER)
        subprocess.run([sys.executable, "-c", BUILD_SCRIPT, kind], cwd=folder, check=True, capture_output=True)
        command = [sys.executable, "-c", f"import sys; sys.path.insert(0, '.')\n{READ_AT_THE_END}"]
        runs[kind] = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert runs["unchanged"].returncode == -signal.SIGSEGV
    assert (runs["changed"].returncode, runs["changed"].stdout) == (0, "dict\n")


@on_the_compiled_build
def test_a_traceback_has_the_lines_of_the_source() -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_document(b'{"binary_data_size":4}1234', binary_follows=False)
    frames = [frame for frame in traceback.extract_tb(raised.tb) if frame.filename.endswith("v2_json.py")]
    assert frames
    lines = (ROOT / "core/http/v2_json.py").read_text().splitlines()
    assert frames[-1].lineno is not None
    assert "raise" in lines[frames[-1].lineno - 1]
    assert frames[-1].line == lines[frames[-1].lineno - 1].strip()


def test_engine_responses_can_be_sent_to_another_process() -> None:
    # A compiled dataclass has lost the arguments of its fields' types, by which its values are read.
    for method in (Engine.model_statistics, Engine.metrics, Engine.model_spec, Engine.server_metadata):
        reader_of(get_type_hints(method)["return"])


def test_version_names_the_build() -> None:
    run = subprocess.run([TRIDENT, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.endswith(f"({BUILD})\n")
