"""The model of this process: its phase, its file and its configuration; and the errors that it and the library raise.

Source: docs/spec/python-backend.md sections 4.1 to 4.4 and 4.6.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import types
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any


class Phase(Enum):
    """LOADING -> SERVING -> ENDING; a model that cannot be loaded stays in LOADING."""

    LOADING = "loading"
    SERVING = "serving"
    """`initialize` has returned: the model may send requests to others."""
    ENDING = "ending"
    """`finalize` begins."""


@dataclass
class RunningModel:
    """The model of this process. `directory` is the version's, `outputs` are the configured names."""

    name: str = ""
    directory: str = ""
    decoupled: bool = False
    outputs: frozenset[str] = field(default_factory=frozenset)
    phase: Phase = Phase.LOADING


_model = RunningModel()


def running_model() -> RunningModel:
    return _model


def set_running_model(model: RunningModel) -> None:
    global _model
    _model = model


def get_model_dir() -> str:
    """The directory of the version that this process serves."""
    return _model.directory


class ModelFailed(Exception):
    """The model cannot be loaded, completed or asked. Its text is Triton's reason, or that of what the model raised."""


def import_model(model_file: str, version_directory: str) -> Any:
    """The class TritonPythonModel of `model_file`. Raises all that the import may raise.

    A file in the version directory is the module VERSION.STEM, so that it can import its neighbours relatively. Any
    other is the file of a backend that is written in Python, and the module STEM.
    """
    folder, file = os.path.split(model_file)
    stem = file[: -len(".py")]
    if os.path.realpath(folder) != os.path.realpath(version_directory):
        sys.path.append(folder)
        return importlib.import_module(stem).TritonPythonModel
    version = os.path.basename(folder)
    sys.path += [folder, os.path.dirname(folder)]
    # Made here, as an import would add folders of the same name elsewhere on the path to the package.
    package = types.ModuleType(version)
    package.__path__ = [folder]
    sys.modules[version] = package
    return importlib.import_module(f"{version}.{stem}").TritonPythonModel


_INVALID = "TYPE_INVALID"


class ModelConfig:
    """The configuration that `auto_complete_config` may add to, but in which it may not change what was configured."""

    def __init__(self, model_config: str) -> None:
        """`model_config` is JSON, as in `args["model_config"]`."""
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set or raise the maximum. Raises ValueError if the configured one is larger."""
        configured = self._model_config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Batch dynamically, as configured if that is configured. Raises ValueError for another scheduler."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but auto-complete-config function for "
                    f"model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:
        """Add an input, or complete the configured one of its name. Raises ValueError if it contradicts that."""
        self._add(
            "input", input, ("name", "data_type", "dims", "optional"), "'name', 'data_type', 'dims' and 'optional'"
        )

    def add_output(self, output: dict[str, Any]) -> None:
        """Add an output, or complete the configured one of its name. Raises ValueError if it contradicts that."""
        self._add("output", output, ("name", "data_type", "dims"), "'name', 'data_type' and 'dims'")

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Set whether the model is decoupled. Raises ValueError if it is configured otherwise."""
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name}' contains "
                "property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", decoupled) != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is "
                f"already set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = decoupled

    @property
    def _name(self) -> str:
        return str(self._model_config.get("name", ""))

    def _add(self, side: str, tensor: dict[str, Any], allowed: tuple[str, ...], listed: str) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        name = tensor.get("name")
        subject = side if name is None else f"{side} '{name}'"
        if any(key not in allowed for key in tensor):
            raise ValueError(f"{subject} {where} contains property other than {listed}.")
        for key in ("name", "data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{subject} {where} is missing '{key}' property.")
        tensors: list[dict[str, Any]] = self._model_config.setdefault(side, [])
        for configured in tensors:
            if configured.get("name") == name:
                self._complete(side, configured, tensor)
                return
        tensors.append(dict(tensor))

    def _complete(self, side: str, configured: dict[str, Any], tensor: dict[str, Any]) -> None:
        model, name = self._name, tensor["name"]
        datatype = configured.get("data_type", _INVALID)
        if datatype not in (_INVALID, tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{model}', configuration expects datatype {datatype} for {side} '{name}', model "
                f"provides {tensor['data_type']}"
            )
        dims = configured.get("dims") or []
        if dims and dims != list(tensor["dims"]):
            raise ValueError(
                f"model '{model}', tensor '{name}': the model expects dims {list(tensor['dims'])} but the model "
                f"configuration specifies dims {dims}"
            )
        optional = tensor.get("optional")
        if optional is not None and configured.get("optional", optional) != optional:
            raise ValueError(
                f"model '{model}', tensor '{name}': the model expects optional {optional} but the model configuration "
                f"specifies optional {configured['optional']}"
            )
        configured.update(tensor)


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The configuration of an input, from the parsed `args["model_config"]`; None if no name matches."""
    return next((each for each in model_config.get("input", []) if each["name"] == name), None)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The configuration of an output, from the parsed `args["model_config"]`; None if no name matches."""
    return next((each for each in model_config.get("output", []) if each["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Return True if the model may answer a request any number of times."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


# --- errors, the text of a model's exception, and the check of texts that a model passes


class TritonModelException(Exception):
    """Raised when a call of the library fails. Its text is the reason."""


class Choice(IntEnum):
    """Named values that are integers, too, with the texts of Triton's library."""

    __str__ = Enum.__str__

    def __format__(self, specification: str) -> str:
        return format(str(self), specification)


class ErrorCode(Choice):
    """The codes of TritonError, with the numbers of TRITONSERVER_Error_Code."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


ErrorCode.__name__ = "__ErrorCode"


class TritonError:
    """An error of one response: a message for the client and one of Triton's codes.

    The server reads `message()` and `code()` when it encodes a response.
    """

    __slots__ = ("_code", "_message")

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str | bytes, code: int = INTERNAL) -> None:
        """Raises TypeError for a message that is not text, and for an unknown code."""
        try:
            self._code = ErrorCode(code)
        except ValueError:
            raise TypeError(
                f"TritonError(): the code must be one of TritonError's, such as TritonError.INTERNAL, not {code!r}"
            ) from None
        self._message = text_of(message, "TritonError(): the message")

    def code(self) -> ErrorCode:
        return self._code

    def message(self) -> str:
        return self._message

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, {self._code!r})"


def text_of(value: object, what: str) -> str:
    """Return a str, or bytes in UTF-8, as a str. `what` names the argument in errors.

    Triton's library takes bytes wherever it takes a str: elements of `as_numpy()` are bytes.

    Raises TypeError for anything but str and bytes, ValueError for bytes that are not UTF-8.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} must be text, and the bytes {bytes(value)!r} are not UTF-8: {error.reason}") from None


def truth_of(value: object, name: str) -> bool:
    """Return whether the argument `name` is true, as Triton's library takes it. Raises TypeError for None."""
    if value is None:
        raise TypeError(f"the argument '{name}' must be a bool, not None")
    return bool(value)


_LIBRARY = os.path.dirname(__file__)
_IMPORTLIB = os.path.join("importlib", "__init__.py")
# Folders of code that may stand between the library and the model.
_BETWEEN = (
    _LIBRARY,
    os.path.join(os.path.dirname(os.__file__), "asyncio"),
    os.path.join(os.path.dirname(os.__file__), "concurrent", "futures"),
)


def _limit(error: BaseException) -> str:
    """Name the limit of the memory of this process, for an allocation that failed: the machine may have much more."""
    if not isinstance(error, MemoryError):
        return ""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return "" if limit == resource.RLIM_INFINITY else f" (the parameter MEMORY_LIMIT_BYTES allows {limit} bytes)"


def exception_text(error: BaseException) -> str:
    """The text of an exception that the model raised, as Triton writes it: type, text, and frames, deepest first.

        TypeError: unsupported operand

        At:
          /models/m/1/model.py(12): scale
          /models/m/1/model.py(31): execute

    The frames above the model and those of the library are left out.
    """
    unavailable = ""
    try:
        message = str(error) or "<EMPTY MESSAGE>"
    except Exception as failure:
        message = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"
        unavailable = f"\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: {exception_text(failure)}"
    text = f"{type(error).__name__}: {message}{_limit(error)}"
    frames = list(traceback.extract_tb(error.__traceback__))
    while frames:
        file = frames[0].filename
        is_import = file.startswith("<frozen importlib") or file.endswith(_IMPORTLIB)
        if not is_import and os.path.dirname(file) not in _BETWEEN:
            break
        del frames[0]
    lines = [
        f"  {frame.filename}({frame.lineno}): {frame.name}\n"
        for frame in reversed(frames)
        if os.path.dirname(frame.filename) != _LIBRARY
    ]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        source = (error.text or "").strip()
        lines.insert(0, f"  {error.filename}({error.lineno}): column {error.offset or 0} of {source!r}\n")
    return f"{text}\n\nAt:\n{''.join(lines)}{unavailable}" if lines else f"{text}{unavailable}"
