"""PyTorch is too large to be installed with every checkout: without it only the tests that need none run."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["test_archive_file.py", "test_package_model.py", "test_torch_script.py"]
