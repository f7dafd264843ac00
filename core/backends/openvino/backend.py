"""The backend `openvino`: models that OpenVINO compiles for the CPU.

Source: docs/spec/framework-backends.md section 6.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trident.core.backends.backend import Backend, BackendModel, LoadContext
from trident.core.backends.openvino import EXTRA
from trident.core.backends.openvino.settings import OpenVinoSettings, model_path
from trident.core.backends.registry import check_installed, importing
from trident.core.config.placement import DeviceKind, placements
from trident.core.config.problem import ModelSignature
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from trident.core.backends.openvino.compiler import Compiler

_FRAMEWORK = "openvino"


def make_backend(settings: Mapping[str, str]) -> Backend:
    """The backend. It has no settings."""
    return OpenVinoBackend()


class OpenVinoBackend:
    """Implements Backend. Loader threads, several at once."""

    supports_gpus = False

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature | None:
        """The signature of the model in the version directory `path`, fitted to `config` if that is complete."""
        model_path(path, config)
        check_installed(_FRAMEWORK, EXTRA, config.name)
        return self._compiler.signature(path, config)

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError for GPUs, and for parameters that have no meaning."""
        if any(placement.kind is DeviceKind.GPU for placement in placements(config)):
            raise ConfigInvalid(
                f"unable to load model '{config.name}', Triton OpenVINO backend supports only Kind CPU and AUTO",
                hint="set the kind of the instance group to KIND_CPU",
                model=config.name,
                field="instance_group",
            )
        OpenVinoSettings.read(config)
        check_installed(_FRAMEWORK, EXTRA, config.name)

    def load(self, context: LoadContext) -> BackendModel:
        """Compile one version, once for all its instances. Raises a ServerError."""
        self.check(context.config)
        return self._compiler.load(context)

    @cached_property
    def _compiler(self) -> Compiler:
        with importing("openvino", EXTRA):
            from trident.core.backends.openvino.compiler import Compiler
        return Compiler()
