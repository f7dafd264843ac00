"""The backend `pytorch`: TorchScript, packages of torch.export and AOTInductor, and modules that are Python code.

Source: docs/spec/framework-backends.md sections 6.2 and 6.3.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from core.backends.base import Backend, BackendModel, LoadContext
from core.backends.parameter_values import parameters_of
from core.backends.python.backend import make_backend as make_python_backend
from core.backends.pytorch.package_file import check_package, package_path
from core.config.schema import ModelConfig
from core.errors import ModelLoadFailed, Unsupported

_log = logging.getLogger("trident.backends")

_STUB = Path(__file__).parent / "stub"
_PACKAGES = "torch_aoti"
_MODULE = "model.py"
# The parameter that names another Python than the server's, which may have PyTorch.
_ENVIRONMENT = "EXECUTION_ENV_PATH"


def make_backend(settings: Mapping[str, str]) -> Backend:
    """The backend with the values of --backend-config for it and for Python models. Raises ImportError."""
    return PyTorchBackend(settings)


class PyTorchBackend:
    """Implements Backend: hands each model to the way that runs it. Loader threads, several at once.

    PyTorch is imported when a TorchScript archive needs it; the other models run in processes of their own.
    """

    completes_configs = False

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._packages = make_python_backend(settings, _STUB / "package_model.py")
        self._modules = make_python_backend(settings, _STUB / "module_model.py")
        # Without PyTorch here every model has an environment of its own, of which nothing is known.
        self.supports_gpus = find_spec("torch") is None or self._archives.supports_gpus

    def inspect(self, path: Path, config: ModelConfig) -> None:
        """None of these models says the names, datatypes and shapes of its tensors as a configuration does."""
        way = _way(config)
        if way == "archive":
            self._archives.inspect(path, config)
        else:
            if way == "package":
                check_package(package_path(path, config), config.name)
            _log.info(
                "skipping model configuration auto-complete for '%s': not supported for pytorch backend", config.name
            )

    def complete(self, path: Path, config: ModelConfig) -> None:
        """Never called: see `inspect`."""
        raise NotImplementedError

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError for what has no meaning."""
        way = _way(config)
        if way == "archive":
            self._archives.check(config)
        elif way == "package" and config.HasField("sequence_batching"):
            raise Unsupported("Sequence batching is not supported yet.", model=config.name)

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version. Raises a ServerError."""
        config, way = context.config, _way(context.config)
        self.check(config)
        if find_spec("torch") is None and _ENVIRONMENT not in parameters_of(config):
            raise ModelLoadFailed(
                f"failed to load model '{config.name}': PyTorch is not installed",
                hint="install it: pip install 'trident-inference[torch]'",
                model=config.name,
            )
        if way == "archive":
            return self._archives.load(context)
        if way == "module":
            return self._modules.load(context)
        check_package(package_path(context.path, config), config.name)
        return self._packages.load(context)

    @cached_property
    def _archives(self) -> Backend:
        try:
            from core.backends.pytorch.torch_script import TorchScriptBackend
        except ImportError as error:
            raise ModelLoadFailed(
                f"unable to import backend 'pytorch': {error}",
                hint="install its framework: pip install 'trident-inference[torch]'",
            ) from error
        return TorchScriptBackend()


def _way(config: ModelConfig) -> str:
    """How a model runs: as `archive` of TorchScript, as `package`, or as a `module` of its user's code."""
    if config.runtime == _MODULE:
        return "module"
    return "package" if config.platform == _PACKAGES else "archive"
