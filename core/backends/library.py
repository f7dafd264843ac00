"""The backend that a configuration asks for, by its name and by the library that Triton would load for it.

Source: docs/spec/repository.md section 1.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.backends.base import Backend
from core.config.paths import is_plain
from core.config.schema import ModelConfig
from core.errors import ConfigInvalid


def find_backend(backends: Mapping[str, Backend], config: ModelConfig) -> Backend:
    """The one of `backends`, by name, that `config` asks for.

    There are no libraries here: a `runtime` is right where it is that of the backend. Raises ConfigInvalid.
    """
    name, runtime = config.backend, config.runtime
    known = f"this server has the backends: {', '.join(sorted(backends))}"
    if runtime and not is_plain(runtime):
        raise ConfigInvalid(f"backend library name '{runtime}' escapes backend directory", hint="remove 'runtime'")
    if runtime and (name not in backends or runtime != _library(name)):
        own = f"remove 'runtime', or set it to {_library(name)}" if name in backends else known
        raise ConfigInvalid(f"unable to find backend library '{runtime}' for model '{config.name}'", hint=own)
    if name not in backends:
        raise ConfigInvalid(
            f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration.",
            hint=known,
        )
    return backends[name]


def _library(backend: str) -> str:
    return f"libtriton_{backend}.so"
