"""PyTorch is too large to be installed with every checkout."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["test_packages.py", "test_torch_script.py"]
