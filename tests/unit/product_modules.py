"""The modules of the product, imported."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType


def product_modules(*packages: ModuleType) -> Iterator[ModuleType]:
    """Every module of `packages`, except programs, what runs in the processes of models, and modules whose framework
    is not installed with every checkout.
    """
    for package in packages:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            rooms = module.name.split(".")
            if not {"stub", "__main__"} & {*rooms} and not ("pytorch" in rooms and find_spec("torch") is None):
                yield importlib.import_module(module.name)
