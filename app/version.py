"""The version of this distribution. It is a constant, because reading the package's metadata takes 30 ms."""

from __future__ import annotations

VERSION = "0.1.0"
