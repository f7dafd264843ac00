"""The library behind `triton_python_backend_utils`, and the program of a stub process.

Modules here import each other relatively, and nothing of the project but two modules of `core/interprocess` that need
no more than numpy: these appear as modules of this package, so that both ends of the socket have one definition.
"""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location

_INTERPROCESS = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4, "interprocess"))


def _load(name: str) -> None:
    """Load the source: beside it may be a module that was compiled for the interpreter of the server."""
    spec = spec_from_file_location(f"{__name__}.{name}", os.path.join(_INTERPROCESS, f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "trident_stub":  # and not in the server, which has them under their own names
    _load("frames")
    _load("shared_memory")
