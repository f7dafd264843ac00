"""How large the program is and how it is cut: `python -m bench size [FOLDER] [--list]`.

Lines are counted as `wc -l` counts them. A cycle is a set of modules that import each other while they are imported.
`--list` adds the names behind the counts.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PRODUCT = ("app", "adapters", "core")
TOOLS = "tools"
AROUND = ("bench", "deploy", "docker", "tests")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(root: Path, top: str) -> list[Path]:
    return sorted((root / top).rglob("*.py"))


def module_of(root: Path, path: Path) -> str:
    return ".".join(["trident", *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")


def spine(root: Path) -> dict[str, int]:
    """The files that docs/reading.md counts as the server's centre, each with the lines that the page names."""
    page = root / "docs" / "reading.md"
    rows = re.findall(r"^\| `([^`]+\.py)` \| ([\d,]+) \|", page.read_text(), re.MULTILINE) if page.exists() else []
    return {path: int(lines.replace(",", "")) for path, lines in rows}


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


def references(trees: Mapping[str, ast.Module]) -> Counter[str]:
    """How often each name is used: as a variable, an attribute, in an import's list or as a whole text."""
    found: Counter[str] = Counter()
    for tree in trees.values():
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                    found[name] += 1
                case ast.ImportFrom():
                    found.update(alias.name for alias in node.names)
    return found


def count_lines(text: str) -> int:
    return text.count("\n")


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def methods(node: ast.ClassDef) -> list[Function]:
    return [each for each in node.body if isinstance(each, Function)]


def report(root: Path, listing: bool = False) -> Iterator[str]:
    texts = {path: path.read_text() for top in (*PRODUCT, TOOLS) for path in python_files(root, top)}
    product = {path: text for path, text in texts.items() if path.relative_to(root).parts[0] != TOOLS}
    trees = {module_of(root, path): ast.parse(text) for path, text in texts.items()}
    graph = {module: imported(tree, frozenset(trees)) - {module} for module, tree in trees.items()}
    cycles = import_cycles(graph)
    sizes = [count_lines(text) for path, text in product.items() if path.name != "__init__.py"]
    lines = sum(map(count_lines, product.values()))

    own = {module_of(root, path): trees[module_of(root, path)] for path in product}
    used = references(own)
    functions: defaultdict[str, list[tuple[str, Function]]] = defaultdict(list)
    classes: defaultdict[str, list[str]] = defaultdict(list)
    single_method = []
    for module, tree in own.items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                functions[node.name].append((module, node))
            elif isinstance(node, ast.ClassDef):
                if "stub" not in module:  # they have the names of Triton's Python backend
                    classes[node.name].append(module)
                public = [each for each in methods(node) if not each.name.startswith("_") or each.name == "__call__"]
                if len(public) == 1 and not node.bases and not node.decorator_list and used[node.name] <= 2:
                    single_method.append(f"{module}: {node.name}.{public[0].name}")
    once = [
        (length(node), f"{module}: {name}")
        for name, found in functions.items()
        if len(found) == 1 and used[name] == 1
        for module, node in found
    ]
    count = sum(map(len, functions.values()))
    twice = {name: modules for name, modules in classes.items() if len(set(modules)) > 1}

    yield f"product without tools, lines       {lines:>8,}"
    yield f"spine (docs/reading.md), lines     {sum(spine(root).values()):>8,}"
    yield f"tools, lines                       {sum(map(count_lines, texts.values())) - lines:>8,}"
    for top in AROUND:
        around = sum(count_lines(path.read_text()) for path in python_files(root, top))
        yield f"{top + ', lines':<35}{around:>8,}"
    guides = [page for page in (root / "docs").glob("*.md") if page.stem not in ("architecture", "reading")]
    words = sum(len(page.read_text().split()) for page in guides)
    yield f"guides (docs/*.md), words          {words:>8,}   (without architecture and reading)"
    yield f"product files                      {len(sizes):>8,}   (without __init__.py)"
    yield f"median lines of a file             {statistics.median(sizes):>8,.0f}"
    yield f"import cycles                      {len(cycles):>8,}"
    yield f"functions                          {count:>8,}"
    yield f"functions per 1,000 lines          {1000 * count / lines:>8,.0f}"
    yield f"functions used once                {len(once):>8,}"
    yield f"  of them under four lines         {sum(size < 4 for size, _ in once):>8,}"
    yield f"classes with one public method     {len(single_method):>8,}   (made in one place)"
    yield f"class names used twice             {len(twice):>8,}"
    yield from (f"cycle: {', '.join(part)}" for part in cycles)
    if listing:
        yield from (f"used once, {size} lines: {where}" for size, where in sorted(once) if size < 8)
        yield from (f"one public method: {where}" for where in sorted(single_method))
        yield from (f"class {name}: {', '.join(modules)}" for name, modules in sorted(twice.items()))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench size", description=__doc__)
    parser.add_argument("folder", nargs="?", default=".", type=Path)
    parser.add_argument("--list", action="store_true", help="add the names behind the counts")
    options = parser.parse_args(arguments)
    print(*report(options.folder.resolve(), options.list), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
