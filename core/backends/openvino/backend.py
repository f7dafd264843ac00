"""The backend `openvino`: models that OpenVINO compiles for the CPU.

Source: docs/spec/framework-backends.md section 6.6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.model_files import field_of, parameters_of, path_of_model
from trident.core.backends.registry import check_installed, importing
from trident.core.config.placement import DeviceKind, placements
from trident.core.config.problem import ModelSignature
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from trident.core.backends.openvino.compiler import Compiler

_FRAMEWORK = "openvino"


class OpenVinoBackend:
    """Implements Backend. Loader threads, several at once. It has no settings."""

    supports_gpus = False

    def __init__(self, settings: Mapping[str, str] | None = None) -> None: ...

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature | None:
        """The signature of the model in the version directory `path`, fitted to `config` if that is complete."""
        model_path(path, config)
        check_installed(_FRAMEWORK, "openvino", config.name)
        return self._compiler.signature(path, config)

    def check(self, config: ModelConfig) -> None:
        if any(placement.kind is DeviceKind.GPU for placement in placements(config)):
            raise ConfigInvalid(
                f"unable to load model '{config.name}', Triton OpenVINO backend supports only Kind CPU and AUTO",
                hint="set the kind of the instance group to KIND_CPU",
                field="instance_group",
            )
        OpenVinoSettings.read(config)
        check_installed(_FRAMEWORK, "openvino", config.name)

    def load(self, context: LoadContext) -> BackendModel:
        self.check(context.config)
        return self._compiler.load(context)

    @cached_property
    def _compiler(self) -> Compiler:
        with importing("openvino"):
            from trident.core.backends.openvino.compiler import Compiler
        return Compiler()


DEFAULT_FILE = "model.xml"


def model_path(version: Path, config: ModelConfig) -> Path:
    return path_of_model(version, config, config.default_model_filename or DEFAULT_FILE, is_there=Path.exists)


_DEVICES = ("CPU", "AUTO")
_HINTS = ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")

_HINT = "PERFORMANCE_HINT"
_NUM_STREAMS = "NUM_STREAMS"
_PRECISION = "INFERENCE_PRECISION_HINT"
_THREADS = "INFERENCE_NUM_THREADS"
# The parameters that are properties of OpenVINO, what each must be, and whether a value is that.
_PROPERTIES: dict[str, tuple[str, Callable[[str], bool]]] = {
    _THREADS: ("a non-negative number", str.isdecimal),
    "COMPILATION_NUM_THREADS": ("a non-negative number", str.isdecimal),
    _NUM_STREAMS: ("either AUTO/NUMA/<int_value>", lambda text: text in ("AUTO", "NUMA") or text.isdecimal()),
    _HINT: ("/".join(_HINTS), lambda text: text.upper() in _HINTS),
}


@dataclass(frozen=True, slots=True)
class OpenVinoSettings:
    """`properties` are those that the configuration sets, by OpenVINO's names. `extension` is a library of operators.

    `reshapes`: inputs get the dimensions of the configuration.
    """

    device: str
    properties: Mapping[str, str]
    extension: str = ""
    reshapes: bool = False

    @classmethod
    def read(cls, config: ModelConfig) -> OpenVinoSettings:
        given = parameters_of(config)
        properties: dict[str, str] = {}
        for name, (wanted, is_valid) in _PROPERTIES.items():
            if name in given:
                if not is_valid(given[name]):
                    raise _wrong(name, wanted, given[name])
                properties[name] = given[name].upper()
        # Without the hint OpenVINO computes in bfloat16 where the processor can, with three digits.
        properties[_PRECISION] = "f32"
        if "HINT_BF16" in given:
            if given["HINT_BF16"].upper() != "YES":
                raise _wrong("HINT_BF16", "YES", given["HINT_BF16"].lower())
            properties[_PRECISION] = "bf16"
        device = given.get("TARGET_DEVICE", "CPU")
        if device not in _DEVICES:
            raise ConfigInvalid(
                f"unable to load model '{config.name}', Triton OpenVINO backend supports only Kind CPU and AUTO",
                hint=f"set TARGET_DEVICE to {' or '.join(_DEVICES)}",
                field=field_of("TARGET_DEVICE"),
            )
        return cls(
            device, properties, given.get("CPU_EXTENSION_PATH", ""), given.get("RESHAPE_IO_LAYERS", "").lower() == "yes"
        )

    def compiled_with(self, threads: int, instances: int) -> dict[str, str]:
        """Return the properties to compile with, for `instances` at a time of `threads` each; 0 threads means all."""
        planned = {_NUM_STREAMS: str(instances), _THREADS: str(threads * instances)}
        # A hint makes OpenVINO choose both.
        return dict(self.properties) if _HINT in self.properties else {**planned, **self.properties}


def _wrong(name: str, wanted: str, given: str) -> ConfigInvalid:
    return ConfigInvalid(f"expected the parameter '{name}' to be {wanted}, got {given}", field=field_of(name))
