"""The version of this distribution. A constant, since reading the installed package's metadata takes 30 ms."""

from __future__ import annotations

VERSION = "0.1.0"
