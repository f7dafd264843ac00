"""Runs the command `trident` as `python -m trident.app`."""

from __future__ import annotations

import sys

from trident.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
