"""Packages the project, whose metadata is in pyproject.toml: as pure Python, or with TRIDENT_COMPILE=1 compiled.

Compiled means that mypyc makes extension modules of the modules that [tool.trident.compiled] names: docs/compiled.md.
An extension module in the checkout would hide its source from then on, so none is made there.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PACKAGE = "trident"
MYPYC_FILES = Path("build", "mypyc")
C_FILES = Path("build", "c")
METADATA = {"egg_info", "dist_info"}
# The modules reach each other through one table: none of their other names has to be visible, nor to be looked up late.
FLAGS = ["-fvisibility=hidden", "-fno-plt"]
# `if (a->b != NULL) { CPy_DECREF(a->b); } a->b = c;` on lines of their own; without the `if` where b is always set.
RELEASE_AND_STORE = re.compile(
    r"(?P<guard>if \([^\n]+ != NULL\) \{\s+)?CPy_DECREF\((?P<place>[^;\n]*(?:->|\*\()[^;\n]*)\);\s+(?(guard)\}\s+)"
    r"(?P=place) = (?P<value>[^;\n]+);"
)
IN_PLACE = {"develop", "editable_wheel", "--inplace", "-i"}


class BuildExtensions(build_ext):
    """Compiles the C files of an extension side by side, and only the changed ones: setuptools does neither."""

    def build_extensions(self) -> None:
        compile_files = self.compiler.compile
        headers = [path.stat().st_mtime for path in MYPYC_FILES.rglob("*.h")]

        def is_stale(source: str, made: str) -> bool:
            path = Path(made)
            return not path.exists() or path.stat().st_mtime < max(Path(source).stat().st_mtime, *headers)

        def compile_side_by_side(sources: list[str], *others: Any, **options: Any) -> list[str]:
            objects: list[str] = self.compiler.object_filenames(sources, output_dir=options["output_dir"])
            stale = [source for source, made in zip(sources, objects, strict=True) if is_stale(source, made)]
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                list(threads.map(lambda source: compile_files([source], *others, **options), stale))
            return objects

        self.compiler.compile = compile_side_by_side
        super().build_extensions()


def compiled_modules(project: dict[str, Any]) -> list[str]:
    """The paths of the modules to compile, from the root of the tree.

    Exits if a module is left out that would not be compiled anyway.
    """
    table = project["tool"]["trident"]["compiled"]
    found: set[str] = set()
    for place in table["modules"]:
        path = ROOT / PACKAGE / place
        modules = path.rglob("*.py") if path.is_dir() else [path]
        found |= {each.relative_to(ROOT / PACKAGE).as_posix() for each in modules if each.name != "__init__.py"}
    unknown = sorted(table["left-out"].keys() - found)
    if unknown:
        raise SystemExit(f"[tool.trident.compiled.left-out] names modules that would not be compiled: {unknown}")
    return [f"{PACKAGE}/{path}" for path in sorted(found - table["left-out"].keys())]


def store_before_release(source: str) -> tuple[str, int]:
    """Write a C file that gives attributes their new values before it releases the old ones.

    mypyc releases first. The end of an object may run any code, and lets other threads and greenlets run: whoever reads
    the attribute then gets an object that is no more, and the process ends some time later (docs/compiled.md). Returns
    the path of the file and the number of places changed.
    """
    made = C_FILES / Path(source).relative_to(MYPYC_FILES)
    text, places = RELEASE_AND_STORE.subn(r"Py_XSETREF(\g<place>, \g<value>);", Path(source).read_text())
    if not made.exists() or made.read_text() != text:
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text)
    return str(made), places


def extensions(project: dict[str, Any]) -> list[Extension]:
    if IN_PLACE & set(sys.argv):
        raise SystemExit("TRIDENT_COMPILE=1 is for wheels (`make wheel`); an editable installation stays pure Python")
    if METADATA & set(sys.argv):
        return []
    # Only a build that compiles has it: setup_requires installs it after the metadata was asked for.
    from mypyc.build import mypycify

    # `make lint` checks the types with the project's options; here they only lead the compiler.
    options = ["--config-file=", "--ignore-missing-imports"]
    paths = [*options, *compiled_modules(project)]
    # A C file for each module, so that all cores compile. Without debug information the modules have half the size.
    # Of level 0 the C compiler is four times as fast, for tests: the variable is that of the command `mypyc`.
    made = list(
        mypycify(
            paths,
            target_dir=str(MYPYC_FILES),
            multi_file=True,
            group_name="trident",
            debug_level="0",
            opt_level=os.environ.get("MYPYC_OPT_LEVEL", "3"),
        )
    )
    places = 0
    for extension in made:
        changed = [store_before_release(source) for source in extension.sources]
        extension.sources = [path for path, _ in changed]
        places += sum(count for _, count in changed)
        extension.extra_compile_args = [*extension.extra_compile_args, *FLAGS]  # they share one list
    if not places:
        raise SystemExit("RELEASE_AND_STORE matches nothing that mypyc wrote: see docs/compiled.md#a-report-to-mypyc")
    return made


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if os.environ.get("TRIDENT_COMPILE") != "1":
        setup()
        return
    setup(
        ext_modules=extensions(project),
        cmdclass={"build_ext": BuildExtensions},
        setup_requires=project["dependency-groups"]["compile"],
    )


if __name__ == "__main__":
    main()
