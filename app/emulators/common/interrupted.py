"""The end of work on a model's files that nobody waits for any more."""

from __future__ import annotations


class Interrupted(Exception):
    """The emulator was told to stop before the model's files were in place."""
