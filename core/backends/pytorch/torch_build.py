"""What is known of the installed PyTorch without importing it, which takes a second and 200 MB."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# In the module that PyTorch's build writes: a version, or None.
_CUDA = re.compile(r"^cuda\b[^=\n]*= *['\"]", re.MULTILINE)


@cache
def is_built_for_gpus() -> bool:
    """Whether it was built with CUDA. Without PyTorch every model has an environment of its own, which may be."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return True
    return _CUDA.search(Path(spec.origin).with_name("version.py").read_text()) is not None
