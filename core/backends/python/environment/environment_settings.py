"""What the settings of the backend say about environments: values of `--backend-config=python,NAME=VALUE`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core.backends.parameter_values import boolean

CACHE_DIRECTORY = "environment-cache-directory"
INSTALL = "install-requirements"
# Use what an earlier load has installed, and install nothing.
CACHED = "cached"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSettings:
    """`cache` is the folder for extracted archives and installed requirements, made when it is first needed.
    `install_requirements`: the `requirements.txt` of models that have one counts; `may_install`: it is installed if it
    has not been yet.
    """

    cache: Path
    install_requirements: bool = True
    may_install: bool = True

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> EnvironmentSettings:
        """Raises ConfigInvalid."""
        cache = settings.get(CACHE_DIRECTORY) or f"{tempfile.gettempdir()}/trident-environments-{os.getuid()}"
        text = settings.get(INSTALL, "true")
        if text == CACHED:
            return cls(cache=Path(cache), may_install=False)
        return cls(cache=Path(cache), install_requirements=boolean(text))
