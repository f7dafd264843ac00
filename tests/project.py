"""The project's folder, its modules, and which build of it is tested."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from trident.app.version import IS_COMPILED

ROOT = Path(__file__).resolve().parent.parent

# For a test that replaces a part of an object, or subclasses it, as only Python classes allow: docs/compiled.md.
pure_python_only = pytest.mark.skipif(IS_COMPILED, reason="needs Python classes: the pure build runs it")

# What modules and packages of these names import, and not every checkout has.
NEEDS = {"pytorch": "torch", "span_exporter": "opentelemetry.sdk"}


def product_modules(*packages: ModuleType) -> Iterator[ModuleType]:
    """Every module of `packages`, except programs, what runs in the processes of models, and modules whose framework
    is not installed with every checkout.
    """
    for package in packages:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            rooms = module.name.split(".")
            needed = next((NEEDS[room] for room in rooms if room in NEEDS), None)
            if not {"stub", "__main__"} & {*rooms} and (needed is None or find_spec(needed) is not None):
                yield importlib.import_module(module.name)
