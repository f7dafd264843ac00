"""The direction of imports, read from the syntax trees: tools -> app -> adapters -> core, and one way through core.

The checker is a pure function of (path, source), so the last tests here show that it can fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

import pytest

from bench.size import import_cycles, imported, module_of, python_files
from tests.flaky import FLAKY
from tests.project import ROOT

# Lowest first: a part of core may import what stands before it, never what stands after it or beside it.
CORE_ORDER: tuple[tuple[str, ...], ...] = (
    ("errors", "buffers", "compiled", "memo", "options", "protos"),
    ("borders",),
    ("waiting",),
    ("inference", "cuda"),
    ("interprocess", "shared_memory"),
    ("response_cache",),
    ("config",),
    ("repository",),
    ("backends",),
    ("scheduling",),
    ("lifecycle",),
    ("engine",),
    ("remote",),
    ("frontend",),
    ("http", "grpc"),
)
# The top-level folders, lowest first. The server is all of them but the tools.
LAYERS = ("core", "adapters", "app", "tools")
SERVER = LAYERS[:-1]
CORE_RANK = {part: rank for rank, parts in enumerate(CORE_ORDER) for part in parts}
# Seen by all of core, and seeing only these.
OBSERVABILITY_SEES = {"borders", "errors", "memo", "options", "inference", "config"}

# The script that asks an imported source for its framework's own answers, in a process of its own.
IMPORTED = "tools/importing/original.py"
# Third-party packages that have their places; a path that ends with / is a folder, * one folder of any name.
PLACES: dict[str, tuple[str, ...]] = {
    "flask": ("core/http/", "adapters/", "tools/emulators/"),
    "werkzeug": ("core/http/", "adapters/", "tools/emulators/"),
    "prometheus_flask_exporter": ("core/http/", "adapters/"),
    "gevent": ("app/",),
    "greenlet": ("app/", "core/frontend/gevent_bridge.py"),
    "gunicorn": ("app/",),
    "grpc": ("tools/",),
    "openvino": ("core/backends/openvino/", IMPORTED),
    "tensorrt": ("core/backends/tensorrt/",),
    "torch": ("core/backends/pytorch/", "core/backends/stub_models/", IMPORTED, "tools/importing/stub/"),
    "treelite": ("core/backends/fil.py",),
}
# Clients of other programs: whichever module it is, it is one. An emulator may speak the API of its platform as well.
IN_ONE_MODULE = (
    "opentelemetry",
    "redis",
    "boto3",
    "botocore",
    "google.cloud",
    "google.auth",
    "google.api_core",
    "google_crc32c",
    "azure",
)
# Frameworks are known to their backends alone, and to the registry, which has a row for each. The table of Triton's
# names lists backends that this server does not have as well. The backend `text` runs its graphs by the other one's
# sessions, and the search for the fastest way to run a model compares frameworks.
FRAMEWORK_NAMES: dict[str, tuple[str, ...]] = {
    "onnxruntime": (
        "core/backends/genai.py",
        "core/backends/onnxruntime/",
        "core/backends/registry.py",
        "core/backends/stub_models/",
        "core/backends/text/",
        "core/config/platforms.py",
        IMPORTED,
        "tools/bench/measure.py",
        "tools/bench/candidates.py",
    ),
}
# Tools use the configuration, the repository and the backends as a library, and the HTTP API. Of what serves they see
# these modules: `openapi` writes down the routes that `serve` would have, the doctor opens the ports that it would
# open, the commands that run a model without a server run it as a load does, and the load client has its HTTP/2 frames.
INSIDE = (
    "app.sites",
    "app.supervisor",
    "app.worker",
    "core.engine",
    "core.frontend",
    "core.grpc",
    "core.http",
    "core.interprocess",
    "core.lifecycle",
    "core.remote",
    "core.scheduling",
    "core.shared_memory",
)
SEEN_BY_TOOLS = {
    "core.http.sample_request": ("tools/bench/", "tools/emulators/command.py", "tools/importing/", "tools/request.py"),
    "core.grpc.status": ("tools/emulators/vertex/",),
    "app.sites.applications": ("tools/request.py",),
    "app.sites.engine_start": ("tools/request.py",),
    "core.engine.in_process": ("tools/request.py",),
    "core.http.application": ("tools/request.py",),
    "core.http.openapi": ("tools/request.py",),
    "app.supervisor.start": ("tools/doctor.py",),
    "app.worker.http2.frames": ("tools/bench/client.py",),
    "app.worker.listening_sockets": ("tools/doctor.py",),
    "core.lifecycle.golden_check": ("tools/bench/replay.py", "tools/validate.py"),
    "core.scheduling.run_once": ("tools/bench/candidates.py", "tools/importing/comparison.py"),
}
# A stub process inherits the environment, as Triton's do, and what runs there may read it. Azure's SDK leaves the
# variables to its callers; boto3 and Google's libraries read theirs themselves.
ENVIRONMENT_READERS = (
    "app/process/environment.py",
    "core/repository/stores/azure.py",
    "core/backends/python/process.py",
    "core/backends/stub_models/",
    "tools/importing/original.py",
)
ENVIRONMENT_NAMES = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}

# Files of a model are opened by `open_file`, which refuses those without an end; other files are read by these.
MODEL_READERS = ("core/config/", "core/repository/", "core/backends/")
OTHER_FILES = (
    "core/config/problem.py",
    "core/repository/stores/",
    "core/repository/cache.py",
    "core/repository/signature.py",
    "core/backends/python/process.py",
    "core/backends/pytorch/backend.py",
    "core/backends/stub_models/",
)


# Only the platforms' rows say what is special about them; the server's own code treats all alike. The emulators and
# their commands are each about one platform.
PLATFORM_NAMES = ("sagemaker", "vertex")
ABOUT_PLATFORMS = ("tools/emulators/", "tools/commands.py", "tools/completion.py")


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


@lru_cache(1)  # several checks of one module follow each other
def nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


@cache  # many tests ask for those of every module
def imports(path: str, source: str) -> list[tuple[str, int]]:
    """The absolute dotted names that a module imports, with their lines; those under TYPE_CHECKING count as well."""
    package = ["trident", *path.split("/")[:-1]]
    found: list[tuple[str, int]] = []
    for node in nodes(source):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            # `from trident.core import engine` imports trident.core.engine, and a class of a module is judged like the
            # module.
            found += [(f"{module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def within(path: str, places: tuple[str, ...]) -> bool:
    return any(path.startswith(place) if place.endswith("/") else Path(path).match(place) for place in places)


def is_of(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def part_of(path: str) -> list[str]:
    return path.removesuffix(".py").split("/")


def direction_breach(path: str, name: str) -> str | None:
    """Why the module at `path` may not import `name` of this project; None if it may."""
    here, there = part_of(path), name.removeprefix("trident.").split(".")
    top, target = here[0], there[0]
    if name.partition(".")[0] in LAYERS:
        return f"a module has one name: trident.{name}"
    if target not in LAYERS or top not in LAYERS:
        return "tests and tools are not imported" if target in {"tests", "bench", "deploy"} else None
    if LAYERS.index(target) > LAYERS.index(top):
        return f"{top} does not know {target}"
    if top == target == "adapters" and len(here) > 2 and len(there) > 1:
        return None if there[1] in (here[1], "common") else "one adapter does not know another"
    if top == target == "core" and len(there) > 1:
        return core_breach(here[1], there[1])
    return None


def core_breach(here: str, there: str) -> str | None:
    if here == there or here == "__init__":
        return None
    if there == "observability":
        return None
    if here == "observability":
        return None if there in OBSERVABILITY_SEES else f"observability does not know {there}"
    unplaced = [part for part in (here, there) if part not in CORE_RANK]
    if unplaced:
        return f"core/{unplaced[0]} has no place in CORE_ORDER"
    return None if CORE_RANK[there] < CORE_RANK[here] else f"core/{here} stands below or beside core/{there}"


def environment_lines(source: str) -> list[int]:
    """The lines that touch the process environment."""
    lines = []
    for node in nodes(source):
        names: set[str] = set()
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            names = {node.attr}
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            names = {alias.name for alias in node.names}
        if isinstance(node, ast.expr | ast.stmt) and names & ENVIRONMENT_NAMES:
            lines.append(node.lineno)
    return lines


def lines_that_name(source: str, word: str) -> list[int]:
    """The lines where an imported module, an identifier or a text of the code contains `word`; docstrings may."""
    bodies = [node.body for node in nodes(source) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    docstrings = {id(line.value) for body in bodies for line in body if isinstance(line, ast.Expr)}
    lines = []
    for node in nodes(source):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            names = [node.value]
        if isinstance(node, ast.expr | ast.stmt) and any(word in name.lower() for name in names):
            lines.append(node.lineno)
    return lines


def lines_that_read(source: str) -> list[int]:
    """The lines that open a file to read it."""
    lines = []
    for node in nodes(source):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            mode = [each.value for each in node.args if isinstance(each, ast.Constant)]
            if name in ("read_text", "read_bytes") or (name == "open" and "rb" in mode):
                lines.append(node.lineno)
    return lines


def breaches(path: str, source: str) -> list[str]:
    """Every breach of the architecture in one module, as `path:line: what`."""
    found = []
    for name, line in imports(path, source):
        reason = direction_breach(path, name)
        if reason:
            found.append(f"{path}:{line}: imports {name}: {reason}")
        found += [
            f"{path}:{line}: imports {name}: {package} belongs in {', '.join(places)}"
            for package, places in PLACES.items()
            if is_of(name, package) and not within(path, places)
        ]
    if not within(path, ENVIRONMENT_READERS):
        found += [f"{path}:{line}: touches the environment" for line in environment_lines(source)]
    if within(path, MODEL_READERS) and not within(path, OTHER_FILES):
        found += [f"{path}:{line}: reads a file of a model without open_file" for line in lines_that_read(source)]
    for word, places in FRAMEWORK_NAMES.items():
        if not within(path, places):
            found += [f"{path}:{line}: names {word}" for line in lines_that_name(source, word)]
    return found


def test_at_most_three_tests_are_rerun() -> None:
    assert len(FLAKY) <= 3
    for name in FLAKY:
        file, _, test = name.partition("::")
        assert f"\ndef {test}(" in (ROOT / file).read_text()


def test_imports_follow_the_layers() -> None:
    found = [breach for path, source in sources(*LAYERS) for breach in breaches(path, source)]
    assert found == []


def test_tools_use_the_public_parts() -> None:
    seen = {
        (path, next(part for part in (*SEEN_BY_TOOLS, *INSIDE) if is_of(name, f"trident.{part}")))
        for path, source in sources("tools")
        for name, _ in imports(path, source)
        if any(is_of(name, f"trident.{part}") for part in INSIDE)
    }
    assert [each for each in seen if not within(each[0], SEEN_BY_TOOLS.get(each[1], ()))] == []
    assert {part for _, part in seen} == SEEN_BY_TOOLS.keys()


def test_a_broad_except_is_at_a_border() -> None:
    """Or has a reason of its own: docs/architecture.md section 10 names the file, and no other."""
    page = (ROOT / "docs/architecture.md").read_text().partition("\n## 10. Borders\n")[2]
    named = {path for path in re.findall(r"`([\w/.]+\.py)`", page) if not path.startswith("tests/")}
    broad = {path for path, source in sources(*SERVER) if catches(source)}
    assert broad <= named, "not in section 10"
    guards = {path for path in named if "guarded(" in (ROOT / path).read_text()}
    assert named <= broad | guards | {"core/scheduling/batch_forming.py"}, "without one"


def catches(source: str) -> bool:
    """True if the module catches exceptions of any class without raising again."""
    return any(
        isinstance(node, ast.ExceptHandler)
        and any(name in ("Exception", "BaseException", "") for name in caught(node))
        and not any(isinstance(each, ast.Raise) for part in node.body for each in ast.walk(part))
        for node in nodes(source)
    )


def caught(handler: ast.ExceptHandler) -> list[str]:
    """The names of the classes; "" for all."""
    if handler.type is None:
        return [""]
    return [each.id for each in ast.walk(handler.type) if isinstance(each, ast.Name)]


@pytest.mark.parametrize(
    ("handler", "found"),
    [
        ("except Exception: pass", True),
        ("except BaseException as error: print(error)", True),
        ("except: pass", True),
        ("except (OSError, Exception): pass", True),
        ("except Exception as error: raise RuntimeError from error", False),
        ("except (OSError, ValueError): pass", False),
    ],
)
def test_except_checker_detects_a_broad_except(handler: str, found: bool) -> None:
    assert catches(f"try: pass\n{handler}") is found


def test_no_modules_import_each_other_in_a_cycle() -> None:
    assert import_cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]
    trees = {module_of(ROOT, path): ast.parse(path.read_text()) for top in LAYERS for path in python_files(ROOT, top)}
    modules = frozenset(trees)
    assert import_cycles({module: imported(tree, modules) - {module} for module, tree in trees.items()}) == []


def test_no_platform_is_named_outside_its_row() -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, source in sources("app", "tools")
        if not within(path, ABOUT_PLATFORMS)
        for number, line in enumerate(source.splitlines(), 1)
        if any(name in line.lower() for name in PLATFORM_NAMES)
    ]
    assert found == []


@pytest.mark.parametrize("package", IN_ONE_MODULE)
def test_a_client_is_imported_by_one_module(package: str) -> None:
    users = {
        path
        for path, source in sources(*LAYERS)
        for name, _ in imports(path, source)
        if is_of(name, package) and not path.startswith("tools/emulators/")
    }
    assert len(users) <= 1


@pytest.mark.parametrize(
    ("path", "source", "what"),
    [
        ("app/sites/site.py", "from app.cli import main", "a module has one name"),
        ("core/engine/in_process.py", "from trident.app.cli import main", "core does not know app"),
        ("adapters/vertex/application.py", "from trident.app import settings", "adapters does not know app"),
        ("adapters/vertex/application.py", "from ..sagemaker.routes import Ping", "one adapter does not know another"),
        ("core/scheduling/queue.py", "from trident.core import engine", "stands below or beside"),
        ("core/scheduling/queue.py", "from ..lifecycle import state", "stands below or beside"),
        ("core/observability/x.py", "from trident.core.scheduling.queue import Queue", "observability does not know"),
        ("core/odds_and_ends.py", "from trident.core.errors import ServerError", "has no place in CORE_ORDER"),
        ("core/http/views.py", "def late() -> None:\n    from gevent import sleep", "gevent belongs in"),
        ("core/config/autocomplete.py", "import onnxruntime as ort", "names onnxruntime"),
        ("core/lifecycle/loader.py", "settings = settings_of('onnxruntime')", "names onnxruntime"),
        ("core/engine/in_process.py", "backend = OnnxRuntimeBackend()", "names onnxruntime"),
        ("core/engine/in_process.py", "import os\nhome = os.environ['HOME']", "touches the environment"),
        ("core/engine/in_process.py", "from os import getenv", "touches the environment"),
        (
            "app/serve.py",
            "def late() -> None:\n    from trident.tools.validate import validate",
            "app does not know tools",
        ),
        ("core/engine/in_process.py", "from tests.unit import fakes", "tests and tools are not imported"),
        ("core/repository/config.py", "text = path.read_text()", "without open_file"),
        ("core/backends/fil.py", "file = open(path, 'rb')", "without open_file"),
    ],
)
def test_import_checker_detects_a_violation(path: str, source: str, what: str) -> None:
    (found,) = breaches(path, source)
    assert what in found
    assert found.startswith(f"{path}:")
