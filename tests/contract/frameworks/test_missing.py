"""A server where no framework is installed says of each model what to install: in the log and in the answer."""

from __future__ import annotations
