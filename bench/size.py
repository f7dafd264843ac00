"""How large the program is and how it is cut: `python -m bench size [FOLDER]`.

Counts lines of Python files as `wc -l` does. A cycle is a set of modules that import each other while they are
imported.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

PRODUCT = ("app", "adapters", "core")
AROUND = ("bench", "deploy", "docker", "tests")


def python_files(root: Path, top: str) -> list[Path]:
    return sorted((root / top).rglob("*.py"))


def module_of(root: Path, path: Path) -> str:
    return ".".join(["trident", *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")


def imported(tree: ast.Module, modules: frozenset[str]) -> set[str]:
    """The modules of the product that a module imports while it is imported."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules or {node.module} & modules
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & modules
    return found


def import_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected parts of `graph` with more than one module, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in path:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            part = path[path.index(module) :]
            del path[path.index(module) :]
            if len(part) > 1:
                found.append(sorted(part))

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return sorted(found)


def late_imports(tree: ast.Module) -> int:
    """The imports inside functions."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return len({node for function in functions for node in ast.walk(function) if _is_import(node)})


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def report(root: Path) -> Iterator[str]:
    trees: dict[str, ast.Module] = {}
    sizes: dict[Path, int] = {}
    for top in PRODUCT:
        for path in python_files(root, top):
            text = path.read_text()
            sizes[path] = text.count("\n")
            trees[module_of(root, path)] = ast.parse(text)
    modules = frozenset(trees)
    graph = {module: imported(tree, modules) - {module} for module, tree in trees.items()}
    lines = [size for path, size in sizes.items() if path.name != "__init__.py"]
    checking = sum(
        ast.unparse(node.test) == "TYPE_CHECKING"
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.If)
    )
    yield f"product lines                {sum(sizes.values()):>8,}"
    yield f"product files                {len(sizes):>8,}   ({len(lines):,} without __init__.py)"
    yield f"median lines of a file       {statistics.median(lines):>8,.0f}   (without __init__.py)"
    yield f"files under 40 lines         {sum(size < 40 for size in lines):>8,}   (without __init__.py)"
    yield f"import cycles                {len(import_cycles(graph)):>8,}"
    yield f"TYPE_CHECKING blocks         {checking:>8,}"
    yield f"imports inside functions     {sum(map(late_imports, trees.values())):>8,}"
    for top in AROUND:
        yield f"{top + ' lines':<29}{sum(path.read_text().count(chr(10)) for path in python_files(root, top)):>8,}"
    yield from (f"cycle: {', '.join(part)}" for part in import_cycles(graph))


def main(arguments: Sequence[str]) -> None:
    print(*report(Path(arguments[0] if arguments else ".").resolve()), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
