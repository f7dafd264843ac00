"""TorchScript archives: what is checked before PyTorch is imported.

    check_script          the configuration
    TorchSettings         the parameters
    input_positions       which tensor is which argument or result
    Forward               the arguments of `forward`
    check_archive         the file

Source: docs/spec/framework-backends.md section 6.2.
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trident.core.backends.model_files import content_hint, path_of_model, start_of, written_by
from trident.core.backends.parameters import boolean, field_of, integer, parameters_of
from trident.core.backends.stub_models.torch_places import index_of
from trident.core.config.schema import ModelConfig, ModelInput, ModelOutput, datatype_of, model_dims
from trident.core.errors import BackendFailed, ConfigInvalid, ModelLoadFailed
from trident.core.inference.tensors import BYTES

_log = logging.getLogger("trident.backends")

_SERVED = {"BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", BYTES.name}


def check_script(config: ModelConfig) -> None:
    """Raise a ServerError for parameters, datatypes and names that have no meaning."""
    TorchSettings.read(config)
    _check_tensors(config)
    check_controls(config)


def _check_tensors(config: ModelConfig) -> None:
    sides: list[tuple[str, list[ModelInput | ModelOutput]]] = [
        ("input", [*config.input]),
        ("output", [*config.output]),
    ]
    for side, entries in sides:
        if not entries:
            raise BackendFailed(
                f"model configuration must contain at least one {side}, none were specified.",
                hint="a TorchScript archive does not say what its tensors are: write them into config.pbtxt",
                field=side,
            )
        for index, entry in enumerate(entries):
            datatype = datatype_of(entry.data_type)
            if datatype is None or datatype.name not in _SERVED:
                name = datatype.config_name if datatype else "TYPE_INVALID"
                raise BackendFailed(
                    f"unsupported datatype {name} for {side} '{entry.name}' for model '{config.name}'",
                    field=f"{side}[{index}].data_type",
                )
            if datatype is BYTES and len(model_dims(entry)) + (config.max_batch_size > 0) != 1:
                raise BackendFailed(
                    f"Triton only supports 1 dimensional List of String as {side} for '{entry.name}' for model "
                    f"'{config.name}'",
                    hint="with batching: dims: [ 1 ] reshape { shape: [ ] }",
                    field=f"{side}[{index}].dims",
                )


_THREADS = "INTRA_OP_THREAD_COUNT"


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """`threads` is 0 where the thread plan decides. The last three are None where PyTorch's default stays."""

    optimizes: bool
    uses_inference_mode: bool
    uses_cudnn: bool
    empties_cache: bool
    shares_weights: bool
    threads: int
    executor: bool | None
    profiling: bool | None
    fuser: bool | None

    @classmethod
    def read(cls, config: ModelConfig) -> TorchSettings:
        """The settings of `config`. Raises ConfigInvalid, with Triton's text."""
        given = parameters_of(config)

        def choice(name: str) -> bool | None:
            return boolean(given[name], field_of(name)) if name in given else None

        def is_on(name: str) -> bool:
            return bool(choice(name))

        return cls(
            optimizes=not is_on("DISABLE_OPTIMIZED_EXECUTION"),
            uses_inference_mode=choice("INFERENCE_MODE") is not False,
            uses_cudnn=not is_on("DISABLE_CUDNN"),
            empties_cache=is_on("ENABLE_CACHE_CLEANING"),
            shares_weights=is_on("ENABLE_WEIGHT_SHARING"),
            threads=max(0, integer(given.get(_THREADS, "0"), field_of(_THREADS))),
            executor=choice("ENABLE_JIT_EXECUTOR"),
            profiling=choice("ENABLE_JIT_PROFILING"),
            fuser=choice("ENABLE_TENSOR_FUSER"),
        )

    def log(self, config: ModelConfig) -> None:
        """Say how a model with parameters runs, in Triton's words."""
        if not config.parameters:
            return
        for name, is_on in (
            ("Optimized execution", self.optimizes),
            ("Cache Cleaning", self.empties_cache),
            ("Inference Mode", self.uses_inference_mode),
            ("cuDNN", self.uses_cudnn),
        ):
            _log.info("%s is %s for model instance '%s'", name, "enabled" if is_on else "disabled", config.name)


def input_positions(names: Sequence[str], arguments: Sequence[str], model: str) -> dict[str, int]:
    """The position of each input among the arguments of `forward`: by their names, their indices, or their order.

    `names` are all that the model is given, in the order of the configuration; `arguments` leaves out `self`.
    """
    if all(name in arguments for name in names):
        return {name: arguments.index(name) for name in names}
    return _by_index_or_order(
        names,
        f"input '%s' or previous input(s) are neither an input argument to the model '{model}' nor do they follow the "
        "<name>__<index> naming convention. Falling back to enforcing strict ordering from model configuration.",
    )


def output_positions(names: Sequence[str], model: str) -> dict[str, int]:
    """The position of each output among the results: by their indices, or their order."""
    return _by_index_or_order(
        names,
        f"output '%s' or previous output(s) of the model '{model}' do not follow the <name>__<index> naming "
        "convention. Falling back to enforcing strict ordering from model configuration.",
    )


def check_controls(config: ModelConfig) -> None:
    """Raise a ServerError for controls and states of sequences whose names do not say where they belong."""
    batching = config.sequence_batching
    for control in batching.control_input:
        if index_of(control.name) is None:
            raise _wrong(
                f"input '{control.name}' does not follow <name>__<index> naming convention.", config, "control_input"
            )
    if not batching.state:
        return
    beginning = f"PyTorch model '{config.name}' is using sequence batching with state but "
    if any(index_of(entry.name) is None for entry in [*config.input, *config.output]):
        raise _wrong(
            f"{beginning}not all inputs and outputs follow the <name>__<index> naming convention. ", config, "state"
        )
    for state in batching.state:
        for name in (state.input_name, state.output_name):
            if index_of(name) is None:
                raise _wrong(
                    f"{beginning}state '{name}' does not follow the <name>__<index> naming convention. ",
                    config,
                    "state",
                )


def _by_index_or_order(names: Sequence[str], warning: str) -> dict[str, int]:
    indices: list[int | None] = [index_of(name) for name in names]
    if None not in indices:
        return {name: index for name, index in zip(names, indices, strict=True) if index is not None}
    wrong = names[indices.index(None)]
    if "__" in wrong:
        _log.warning(warning, wrong)
    return {name: position for position, name in enumerate(names)}


def _wrong(message: str, config: ModelConfig, field: str) -> BackendFailed:
    return BackendFailed(message, field=f"sequence_batching.{field}")


_DICTIONARY = "DictType"
_PLAIN = ("TensorType", "ListType")


@dataclass(frozen=True, slots=True)
class Argument:
    """`kind` is PyTorch's name of the kind of type, `type_text` the type as PyTorch writes it."""

    name: str
    kind: str
    type_text: str


@dataclass(frozen=True, slots=True)
class Forward:
    """`takes_dictionary`: the one argument is a dictionary of tensors by their names. `arguments` are their names."""

    arguments: tuple[str, ...]
    takes_dictionary: bool

    @classmethod
    def of(cls, arguments: Sequence[Argument], model: str) -> Forward:
        """Raises BackendFailed, with Triton's text, for arguments that requests cannot give."""
        if len(arguments) == 1 and arguments[0].kind == _DICTIONARY:
            return cls((arguments[0].name,), True)
        for argument in arguments:
            if argument.kind == _DICTIONARY:
                raise BackendFailed(
                    "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is "
                    "supported."
                )
            if argument.kind not in _PLAIN:
                raise BackendFailed(
                    f"An input of type '{argument.type_text}' was detected in the model. Only a single input of type "
                    "Dict(str, Tensor) or input(s) of type Tensor are supported.",
                    hint=f"give the argument '{argument.name}' of forward the type Tensor, or List[str]",
                )
        return cls(tuple(argument.name for argument in arguments), False)

    def check_count(self, count: int, model: str) -> None:
        """Raise ConfigInvalid unless a configuration with `count` inputs gives every argument."""
        if not self.takes_dictionary and count != len(self.arguments):
            raise ConfigInvalid(
                f"unable to load model '{model}', configuration expects {count} inputs, model provides "
                f"{len(self.arguments)}",
                hint=f"the arguments of forward are: {', '.join(self.arguments)}",
            )


DEFAULT_FILE = "model.pt"

_ARCHIVE = b"PK\x03\x04"
# The constants of the code: every TorchScript archive has them, and nothing that `torch.save` writes does.
_CONSTANTS = "constants.pkl"
_SCRIPT_IT = "save the model with torch.jit.script(model).save(PATH) or torch.jit.trace(model, example).save(PATH)"


def module_path(version: Path, config: ModelConfig) -> Path:
    """The file in the directory of a version. Raises RepositoryUnavailable with Triton's text."""
    return path_of_model(version, config, config.default_model_filename or DEFAULT_FILE)


def check_archive(path: Path, model: str) -> None:
    """Raise ModelLoadFailed unless the file is a TorchScript archive. Reads its table of contents, runs nothing."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        raise _failed("the file is not a TorchScript archive", model, _no_archive_hint(path)) from None
    if any(Path(name).name == _CONSTANTS for name in names):
        return
    if any(Path(name).name == "data.pkl" for name in names):
        raise _failed(
            "the file is a pickle that torch.save has written, which could run any code when it is loaded",
            model,
            _SCRIPT_IT,
        )
    hint = 'rename it to model.pt2 and set platform: "torch_aoti"' if _is_package(names) else _SCRIPT_IT
    raise _failed("the file is not a TorchScript archive", model, hint)


def _failed(text: str, model: str, hint: str | None) -> ModelLoadFailed:
    return ModelLoadFailed(f"failed to load model '{model}': {text}", hint=hint)


def _is_package(names: list[str]) -> bool:
    return any("aotinductor" in name or name.endswith("archive_format") for name in names)


def _no_archive_hint(path: Path) -> str:
    if hint := content_hint(path):
        return hint
    if start_of(path, 1) == b"\x80":
        return f"the file is a pickle, which could run any code when it is loaded: {_SCRIPT_IT}"
    if start_of(path, len(_ARCHIVE)) == _ARCHIVE:
        return "the archive is incomplete, because its table of contents is missing: copy the file again"
    return f"compare the file{written_by(path)} with the original; or {_SCRIPT_IT}"
