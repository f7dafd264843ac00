"""The version of this distribution. It is a constant, because reading the package's metadata takes 30 ms."""

from __future__ import annotations

VERSION = "0.2.0"
# This module is compiled where the hot path is, so its own file tells which build this is: docs/compiled.md.
IS_COMPILED = not __file__.endswith(".py")
BUILD = "compiled" if IS_COMPILED else "pure Python"
