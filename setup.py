"""Packages the project, whose metadata is in pyproject.toml: as pure Python, or with TRIDENT_COMPILE=1 compiled.

Compiled means that mypyc makes extension modules of the modules that [tool.trident.compiled] names. Their sources stay
beside them, for tracebacks. An extension module in the checkout would hide its source from then on, so none is made
there.
"""

from __future__ import annotations

import os
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
TARGET = "build/c"
IN_PLACE = {"develop", "editable_wheel", "--inplace", "-i"}


def compiled_modules(project: dict[str, Any]) -> list[str]:
    """The paths of the modules to compile, from the root of the tree. Raises SystemExit for a path that is none."""
    table = project["tool"]["trident"]["compiled"]
    found: set[str] = set()
    for place in table["modules"]:
        path = ROOT / place
        modules = path.rglob("*.py") if path.is_dir() else [path]
        found |= {each.relative_to(ROOT).as_posix() for each in modules if each.name != "__init__.py"}
    unknown = sorted(set(table["left-out"]) - found)
    if unknown:
        raise SystemExit(f"[tool.trident.compiled.left-out] names modules that would not be compiled: {unknown}")
    return sorted(found - set(table["left-out"]))


def extensions(project: dict[str, Any]) -> list[Extension]:
    # Only a build that compiles has mypyc.
    from mypyc.build import mypycify

    if IN_PLACE & set(sys.argv):
        raise SystemExit("TRIDENT_COMPILE=1 is for wheels: `make wheel`; an editable installation stays pure Python")
    # `make lint` checks the types with the project's options; here they only lead the compiler.
    options = ["--config-file=", "--ignore-missing-imports"]
    return mypycify(
        [*options, *compiled_modules(project)],
        target_dir=TARGET,
        opt_level=os.environ.get("OPT", "3"),
        multi_file=True,
        group_name="trident",
    )


class BuildExtensions(build_ext):
    """Compiles the C files of an extension side by side, and of those only the changed ones; setuptools does neither."""

    def build_extensions(self) -> None:
        compile_one = self.compiler.compile
        headers = [path.stat().st_mtime for path in Path(TARGET).rglob("*.h")]

        def compile_all(sources: list[str], *others: Any, **options: Any) -> list[str]:
            objects = self.compiler.object_filenames(sources, output_dir=options["output_dir"])
            changed = [source for source, made in zip(sources, objects, strict=True) if is_stale(source, Path(made))]
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                list(threads.map(lambda source: compile_one([source], *others, **options), changed))
            return objects

        def is_stale(source: str, made: Path) -> bool:
            return not made.exists() or made.stat().st_mtime < max(Path(source).stat().st_mtime, *headers)

        self.compiler.compile = compile_all
        super().build_extensions()


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


main()
