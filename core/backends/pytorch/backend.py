"""The backend `pytorch`: TorchScript, packages of torch.export and AOTInductor, and modules that are Python code.

Source: docs/spec/framework-backends.md sections 6.2 and 6.3.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from trident.core.backends.backend import Backend, BackendModel, LoadContext
from trident.core.backends.parameters import parameters_of
from trident.core.backends.python.backend import make_backend as make_python_backend
from trident.core.backends.pytorch import EXTRA
from trident.core.backends.pytorch.packages import check_package, package_path, tensors_of
from trident.core.backends.pytorch.torch_script import check_archive, check_script, module_path
from trident.core.backends.registry import check_installed, importing
from trident.core.config.problem import InvalidModelConfig
from trident.core.config.schema import ModelConfig

_log = logging.getLogger("trident.backends")

_STUB = Path(__file__).parent / "stub"
_PACKAGES = "torch_aoti"
_MODULE = "model.py"
# The parameter that names another Python than the server's, which may have PyTorch.
_ENVIRONMENT = "EXECUTION_ENV_PATH"


# In the module that PyTorch's build writes: a version, or None.
_CUDA = re.compile(r"^cuda\b[^=\n]*= *['\"]", re.MULTILINE)


@cache
def is_built_for_gpus() -> bool:
    """Whether PyTorch was built with CUDA. Without PyTorch every model has an environment of its own, which may be."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return True
    return _CUDA.search(Path(spec.origin).with_name("version.py").read_text()) is not None


def make_backend(settings: Mapping[str, str]) -> Backend:
    """The backend with the values of --backend-config for it and for Python models. Raises ImportError."""
    return PyTorchBackend(settings)


class PyTorchBackend:
    """Implements Backend: hands each model to the way that runs it. Loader threads, several at once.

    PyTorch is imported when a TorchScript archive is loaded; the other models run in processes of their own.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._packages = make_python_backend(settings, _STUB / "package_model.py")
        self._modules = make_python_backend(settings, _STUB / "module_model.py")
        self.supports_gpus = is_built_for_gpus()

    def inspect(self, path: Path, config: ModelConfig) -> None:
        """None of these models completes a configuration; what they say of their tensors is compared with it."""
        way = _way(config)
        if way == "package":
            _check_package(path, config)
            return
        if way == "archive":
            check_archive(module_path(path, config), config.name)
        if way == "module" or not (config.input and config.output):
            _log.info(
                "skipping model configuration auto-complete for '%s': not supported for pytorch backend", config.name
            )
            return
        check_installed("torch", EXTRA, config.name)
        with importing("pytorch", EXTRA):
            from trident.core.backends.pytorch.script_model import check_arguments
        check_arguments(path, config)

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError for what has no meaning."""
        way = _way(config)
        if way == "archive":
            check_script(config)
        if way == "archive" or _ENVIRONMENT not in parameters_of(config):
            check_installed("torch", EXTRA, config.name)

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version. Raises a ServerError."""
        self.check(context.config)
        way = _way(context.config)
        if way == "archive":
            with importing("pytorch", EXTRA):
                from trident.core.backends.pytorch.script_model import load_script
            return load_script(context)
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
        raise InvalidModelConfig(problems)


def _way(config: ModelConfig) -> str:
    """How a model runs: as `archive` of TorchScript, as `package`, or as a `module` of its user's code."""
    if config.runtime == _MODULE:
        return "module"
    return "package" if config.platform == _PACKAGES else "archive"
