"""The project's folder, and which build of it is tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from trident.app.version import IS_COMPILED

ROOT = Path(__file__).resolve().parent.parent

# For a test that replaces a part of an object, or subclasses it, as only Python classes allow: docs/compiled.md.
pure_python_only = pytest.mark.skipif(IS_COMPILED, reason="needs Python classes: the pure build runs it")
