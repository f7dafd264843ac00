"""The backend `pytorch`: TorchScript, packages of torch.export and AOTInductor, and modules that are Python code.

Source: docs/spec/framework-backends.md sections 6.2 and 6.3.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from trident.core.backends.backend import Backend, BackendModel, LoadContext
from trident.core.backends.parameters import parameters_of
from trident.core.backends.python.backend import make_backend as make_python_backend
from trident.core.backends.pytorch import EXTRA
from trident.core.backends.pytorch.packages import check_package, package_path, tensors_of
from trident.core.backends.pytorch.torch_script import TorchScriptBackend
from trident.core.backends.registry import check_installed
from trident.core.config.problem import InvalidModelConfig
from trident.core.config.schema import ModelConfig

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

    PyTorch is imported when a TorchScript archive is loaded; the other models run in processes of their own.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._archives = TorchScriptBackend()
        self._packages = make_python_backend(settings, _STUB / "package_model.py")
        self._modules = make_python_backend(settings, _STUB / "module_model.py")
        self.supports_gpus = self._archives.supports_gpus

    def inspect(self, path: Path, config: ModelConfig) -> None:
        """None of these models completes a configuration; what they say of their tensors is compared with it."""
        way = _way(config)
        if way == "archive":
            self._archives.inspect(path, config)
        elif way == "package":
            _check_package(path, config)
        else:
            _log.info(
                "skipping model configuration auto-complete for '%s': not supported for pytorch backend", config.name
            )

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError for what has no meaning."""
        if _way(config) == "archive":
            self._archives.check(config)
        elif _ENVIRONMENT not in parameters_of(config):
            check_installed("torch", EXTRA, config.name)

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version. Raises a ServerError."""
        self.check(context.config)
        way = _way(context.config)
        if way == "archive":
            return self._archives.load(context)
        if way == "module":
            return self._modules.load(context)
        _check_package(context.path, context.config)
        return self._packages.load(context)


def _check_package(path: Path, config: ModelConfig) -> None:
    """Raise a ServerError for a package that cannot run here, or that `config`, if it is complete, does not fit."""
    file = package_path(path, config)
    check_package(file, config.name)
    tensors = tensors_of(file) if config.input and config.output else None
    problems = list(tensors.problems(config)) if tensors else []
    if problems:
        raise InvalidModelConfig(problems, model=config.name)


def _way(config: ModelConfig) -> str:
    """How a model runs: as `archive` of TorchScript, as `package`, or as a `module` of its user's code."""
    if config.runtime == _MODULE:
        return "module"
    return "package" if config.platform == _PACKAGES else "archive"
