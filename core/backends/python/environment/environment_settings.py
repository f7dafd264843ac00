"""What the settings of the backend say about environments: values of `--backend-config=python,NAME=VALUE`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core.backends.parameter_values import boolean

CACHE_DIRECTORY = "environment-cache-directory"
_INSTALL = "install-requirements"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSettings:
    """`cache` is the folder for extracted archives and installed requirements, made when it is first needed.
    `install_requirements`: install the `requirements.txt` of models that have one.
    """

    cache: Path
    install_requirements: bool = True

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> EnvironmentSettings:
        """Raises ConfigInvalid."""
        cache = settings.get(CACHE_DIRECTORY) or f"{tempfile.gettempdir()}/trident-environments-{os.getuid()}"
        return cls(cache=Path(cache), install_requirements=boolean(settings.get(_INSTALL, "true")))
