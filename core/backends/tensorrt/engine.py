"""TensorRT as plain data: the package, its errors, and an engine's tensors and profiles.

Configurations are completed and checked by these. The package `tensorrt` is imported when the first plan is read,
because a server without plans does not need it.
Source: TensorRT's Python API reference, Runtime, ILogger and ICudaEngine; docs/spec/framework-backends.md section 6.5.
"""

from __future__ import annotations

import ctypes
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from trident.core.backends.model_files import boolean, origin_of
from trident.core.backends.registry import DeviceSupport, importing
from trident.core.config.problem import InvalidModelConfig, ModelSignature, Problem, TensorSignature, open_file
from trident.core.config.resolve import own_inputs, own_outputs
from trident.core.config.schema import (
    DataType,
    ModelConfig,
    ModelInput,
    ModelOutput,
    data_type_of,
    datatype_of,
    model_dims,
)
from trident.core.config.validate import validate_against_signature
from trident.core.cuda import CudaError
from trident.core.errors import (
    BackendFailed,
    ConfigInvalid,
    DeviceLost,
    ModelLoadFailed,
    OutOfMemory,
    ServerError,
    Unsupported,
)
from trident.core.inference.tensors import BY_NAME, Shape, shape_text

_log = logging.getLogger("trident.backends")
_config_log = logging.getLogger("trident.config")

_POLICIES = ("DEVICE_BLOCKING", "BLOCKING")
# TensorRT's texts never repeat one of a client.
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|requested amount of GPU memory")
_POISON = re.compile(r"Cuda Runtime \((?:an illegal memory access|unspecified launch failure|misaligned address)")


@dataclass(frozen=True, slots=True)
class TensorRtSettings:
    """`plugins` are libraries that are loaded before the first plan. `version_compatible`: plans of other versions may
    bring code with them, which is run.
    """

    plugins: tuple[str, ...] = ()
    version_compatible: bool = False

    @classmethod
    def read(cls, given: Mapping[str, str]) -> TensorRtSettings:
        policy = given.get("execution-policy", _POLICIES[0])
        if policy not in _POLICIES:
            raise ConfigInvalid(f"unknown execution-policy '{policy}'", hint=f"one of {', '.join(_POLICIES)}")
        # Requests are always gathered into one buffer, and each instance has its thread: both values do the same here.
        boolean(given.get("coalesce-request-input", "false"))
        plugins = tuple(path for path in given.get("plugins", "").split(";") if path)
        return cls(plugins, boolean(given.get("version-compatible", "false")))


class EngineError(Exception):
    """TensorRT refused a call; the text is what it logged."""


def is_out_of_memory(text: str) -> bool:
    return _OUT_OF_MEMORY.search(text) is not None


def is_poison(exc: BaseException) -> bool:
    """Return True if nothing can run again on the device in this process."""
    if isinstance(exc, CudaError):
        return exc.is_poison
    return _POISON.search(str(exc)) is not None


def error_of(exc: Exception, model: str) -> ServerError:
    """The server's error for a failed execution: a CudaError, an EngineError, or what TensorRT raises."""
    return failure_of(exc, f"unable to enqueue for inference {model}")


def load_failure_of(exc: Exception, what: str, device_id: int) -> ServerError:
    """As `failure_of`, while a model is loaded on a GPU: DeviceLost, OutOfMemory or ModelLoadFailed."""
    if is_poison(exc):
        return DeviceLost(f"{what}: {exc}", device=f"gpu:{device_id}")
    return failure_of(exc, what, ModelLoadFailed)


def failure_of(exc: Exception, what: str, failed: type[ServerError] = BackendFailed) -> ServerError:
    """OutOfMemory, or `failed`, for `what` was not possible because of `exc`."""
    message = f"{what}: {exc}"
    lacks_memory = exc.is_out_of_memory if isinstance(exc, CudaError) else is_out_of_memory(str(exc))
    if lacks_memory:
        return OutOfMemory(message, hint="use fewer instances, a smaller max_batch_size, or another GPU")
    return failed(message)


_LEVELS = {
    "INTERNAL_ERROR": logging.ERROR,
    "ERROR": logging.ERROR,
    "WARNING": logging.WARNING,
    "INFO": logging.DEBUG,
}


class TensorRtPackage:
    """Any thread. `module` is the package.

    Make and use a runtime only inside `CudaDriver.on`: without a device TensorRT ends the process instead of raising.
    """

    def __init__(self, module: Any, settings: TensorRtSettings) -> None:
        self.module = module
        self._settings = settings
        self._last = threading.local()
        self._logger = _make_logger(module, self._last)
        self._loading = threading.Lock()
        self._has_plugins = False

    @property
    def version(self) -> str:
        return str(self.module.__version__)

    @property
    def last_error(self) -> str:
        """The last error that TensorRT logged on this thread; "" without one."""
        return str(getattr(self._last, "text", ""))

    def forget_error(self) -> None:
        self._last.text = ""

    def runtime(self) -> Any:
        """A runtime on the current device, which must live as long as its engines. Loads the plugins first.

        Raises ConfigInvalid for a plugin library that cannot be loaded, and ModelLoadFailed with Triton's text.
        """
        with self._loading:
            if not self._has_plugins:
                for path in self._settings.plugins:
                    try:
                        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
                    except OSError as error:
                        raise ConfigInvalid(
                            f"unable to load plugin library '{path}' of TensorRT: {error}",
                            hint="--backend-config=tensorrt,plugins=FILE;FILE",
                        ) from error
                self.module.init_libnvinfer_plugins(self._logger, "")
                self._has_plugins = True
        self.forget_error()
        runtime = self.module.Runtime(self._logger)
        if self.last_error:
            # The object is there nevertheless, and its first use, or its end, would end the process: it stays for ever.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(runtime))
            raise ModelLoadFailed(
                f"unable to create TensorRT runtime: {self.last_error}",
                hint=f"TensorRT {self.version} may need a newer NVIDIA driver: update it, or install an older TensorRT",
            )
        if self._settings.version_compatible:
            runtime.engine_host_code_allowed = True
        return runtime

    def deserialize(self, runtime: Any, path: Path) -> Any:
        """The engine of the plan at `path`, on the current device. Raises a ServerError with Triton's text."""
        self.forget_error()
        with open_file(path) as file:
            engine = runtime.deserialize_cuda_engine(file.read())
        if engine is not None:
            return engine
        text = f"unable to create TensorRT engine: {self.last_error}"
        if is_out_of_memory(self.last_error):
            raise OutOfMemory(text)
        origin = origin_of(path) or "another TensorRT"
        hint = f"the plan was built by {origin}; TensorRT {self.version} is installed. "
        if f"{origin} ".startswith(f"TensorRT {'.'.join(self.version.split('.')[:3])} "):
            hint += "The file is incomplete, or was built for another kind of GPU: copy it again, or build it here"
        else:
            hint += (
                "A plan runs with the version that built it: build it again here, or with --versionCompatible and then "
                "start with --backend-config=tensorrt,version-compatible=true"
            )
        raise ModelLoadFailed(text, hint=hint)


def import_package(settings: TensorRtSettings) -> TensorRtPackage:
    with importing("tensorrt"):
        return TensorRtPackage(import_module("tensorrt"), settings)


def _make_logger(module: Any, last: threading.local) -> Any:
    class Logger(module.ILogger):  # type: ignore[misc]
        """Passes TensorRT's messages on. TensorRT logs on the thread that it was called on, mostly."""

        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            level = _LEVELS.get(severity.name)
            if level is None:
                return
            if level == logging.ERROR:
                last.text = message
            _log.log(level, "TensorRT: %s", message)

    return Logger()


def device_support(settings: Mapping[str, str]) -> DeviceSupport:
    """Imports the package, which loads its libraries: ImportError, OSError."""
    return DeviceSupport(f"TensorRT {import_module('tensorrt').__version__}", ())


# --- the tensors and profiles of an engine, and configurations that are completed and checked by them

_DATATYPES = {
    "FLOAT": "FP32",
    "HALF": "FP16",
    "BF16": "BF16",
    "INT8": "INT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "UINT8": "UINT8",
    "BOOL": "BOOL",
}


@dataclass(frozen=True, slots=True)
class ProfileRange:
    """The shapes that one profile takes for an input; for a shape tensor the values."""

    least: Shape
    best: Shape
    most: Shape


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """An input or output. `shape` has -1 for variable dimensions.

    `datatype` is a v2 name, "" for one that cannot be served; `type_name` is TensorRT's. `is_shape`: its values decide
    about shapes, or are shapes, and it lies in host memory. `profiles` are the ranges of an input, by profile.
    """

    name: str
    type_name: str
    shape: Shape
    is_shape: bool = False
    is_linear: bool = True
    profiles: tuple[ProfileRange, ...] = ()

    @property
    def datatype(self) -> str:
        return _DATATYPES.get(self.type_name, "")


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """The tensors in the engine's order; `profiles` is how many optimization profiles there are."""

    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    profiles: int

    def batch_limit(self, profile: int) -> int:
        """The largest batch that a profile takes: the least of the first dimensions; 0 if there is none."""
        firsts = []
        for tensor in self.inputs:
            most = tensor.profiles[profile].most
            if not most and not tensor.is_shape:
                return 0
            if most:
                firsts.append(most[0])
        return max(0, min(firsts, default=0))


def describe(engine: Any) -> EngineDescription:
    count = engine.num_optimization_profiles
    inputs: list[EngineTensor] = []
    outputs: list[EngineTensor] = []
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        is_input = engine.get_tensor_mode(name).name == "INPUT"
        is_shape = bool(engine.is_shape_inference_io(name))
        tensor = EngineTensor(
            name,
            engine.get_tensor_dtype(name).name,
            _shape(engine.get_tensor_shape(name)),
            is_shape,
            all(engine.get_tensor_format(name, profile).name == "LINEAR" for profile in range(count)),
            tuple(_range(engine, name, profile, is_shape) for profile in range(count)) if is_input else (),
        )
        (inputs if is_input else outputs).append(tensor)
    return EngineDescription(tuple(inputs), tuple(outputs), count)


def _range(engine: Any, name: str, profile: int, is_shape: bool) -> ProfileRange:
    if is_shape:
        # The keywords of this method are in the wrong order in TensorRT: the first argument is the profile.
        values = engine.get_tensor_profile_values(profile, name)
    else:
        values = engine.get_tensor_profile_shape(name, profile)
    least, best, most = [_shape(each) for each in values] or [(), (), ()]
    return ProfileRange(least, best, most)


def _shape(dims: Iterable[int]) -> Shape:
    return tuple(int(dim) for dim in dims)


def profile_indices(config: ModelConfig, names: Sequence[str], available: int) -> tuple[int, ...]:
    """The profiles that the `profile` field of an instance group names; the first without any.

    Raises BackendFailed and ConfigInvalid with Triton's texts.
    """
    found: dict[int, None] = {}
    for name in names:
        try:
            index = int(name)
        except ValueError:
            raise ConfigInvalid(f"unable to parse '{name}': stoi", hint="profiles have numbers, from 0 on") from None
        if not 0 <= index < available:
            raise BackendFailed(
                f"unable to autofill for '{config.name}', configuration specified invalid profile {name} . Number of "
                f"profiles supported by TensorRT engine: {available}",
                hint=f"instance_group.profile: 0 to {available - 1}",
            )
        found[index] = None
    return tuple(found) or (0,)


def choose_profile(
    engine: EngineDescription, profiles: Sequence[int], given: Mapping[str, Shape], instance: str
) -> int:
    """The profile of `profiles` that takes the batch and whose best shapes are nearest to it.

    `given` are the shapes of the inputs, and the values of shape tensors. Raises BackendFailed with Triton's text.
    """
    fitting = [(_distance(engine, index, given), index) for index in profiles if not _misfit(engine, index, given)]
    if fitting:
        return min(fitting)[1]
    raise BackendFailed(
        _misfit(engine, profiles[0], given, instance),
        hint="the plan was built with these limits (trtexec --minShapes --maxShapes)",
    )


def dims_problem(tensor: EngineTensor, profile: int, shape: Shape, first: int = 0) -> str:
    """Return why dimensions of `shape` from `first` on are outside of a profile, in Triton's text; "" if none is."""
    limits = tensor.profiles[profile]
    if len(shape) != len(limits.most):
        return f"model expected {len(limits.most)} dimensions but received {len(shape)} dimensions"
    for at, (least, dim, most) in enumerate(zip(limits.least, shape, limits.most, strict=True)):
        if at >= first and dim != -1 and not least <= dim <= most:
            return f"model expected the shape of dimension {at} to be between {least} and {most} but received {dim}"
    return ""


def _misfit(engine: EngineDescription, profile: int, given: Mapping[str, Shape], instance: str = "") -> str:
    """Return why a profile does not take the batch; "" if it does."""
    for tensor in engine.inputs:
        value = given[tensor.name]
        if tensor.is_shape:
            limits = tensor.profiles[profile]
            if len(value) != len(limits.most):
                return f"mismatch between the number of shape values. Expecting {len(limits.most)}. Got {len(value)}"
            for at, (least, each, most) in enumerate(zip(limits.least, value, limits.most, strict=True)):
                if not least <= each <= most:
                    return (
                        f"The shape value at index {at} is expected to be in range from {least} to {most}, Got: {each}"
                    )
        elif problem := dims_problem(tensor, profile, value):
            return f"request specifies invalid shape for input '{tensor.name}' for {instance}. Error details: {problem}"
    return ""


def _distance(engine: EngineDescription, profile: int, given: Mapping[str, Shape]) -> int:
    return sum(
        abs(value - best)
        for tensor in engine.inputs
        for value, best in zip(given[tensor.name], tensor.profiles[profile].best, strict=False)
    )


def complete_config(config: ModelConfig, engine: EngineDescription) -> None:
    """Fill max_batch_size, the scheduler, and the fields of inputs and outputs that `config` leaves out, in place.

    Raises a ServerError with Triton's text for what contradicts the engine.
    """
    limit = supported_batch(config, engine)
    hint = _batching_hint(config, engine)
    if hint and limit == 0:
        raise BackendFailed(
            f"autofill failed for model '{config.name}': model tensor shape configuration hints for dynamic batching "
            "but the underlying engine doesn't support batching.",
            hint="configure all dimensions of the tensors, and max_batch_size: 0",
        )
    if hint is False:
        if limit:
            _config_log.warning(
                "The specified dimensions in model config for %s hints that batching is unavailable", config.name
            )
        limit = 0
    if config.max_batch_size == 0:
        config.max_batch_size = limit
    check_batch(config, limit)
    if limit > 1 and config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.SetInParent()
    batching = config.max_batch_size > 0
    given = {*own_inputs(config), *(name for entry in config.batch_input for name in entry.target_name)}
    _fill_side(config.input, [tensor for tensor in engine.inputs if tensor.name not in given], batching)
    _fill_side(config.output, [tensor for tensor in engine.outputs if tensor.name not in own_outputs(config)], batching)


def supported_batch(config: ModelConfig, engine: EngineDescription) -> int:
    """The largest batch that one of the profiles takes which `config` uses; 0 if the engine cannot batch."""
    names = [name for group in config.instance_group for name in group.profile]
    return max(engine.batch_limit(profile) for profile in profile_indices(config, names, engine.profiles))


def check_batch(config: ModelConfig, limit: int) -> None:
    if config.max_batch_size > limit:
        raise BackendFailed(
            f"autofill failed for model '{config.name}': configuration specified max-batch {config.max_batch_size} "
            f"but TensorRT engine only supports max-batch {limit}",
            hint=f"max_batch_size: {limit}, or build the plan with a larger first dimension in --maxShapes",
        )


def _batching_hint(config: ModelConfig, engine: EngineDescription) -> bool | None:
    """Return True if the configured dimensions leave out a batch dimension; None if they do not say."""
    tensors = {tensor.name: tensor for tensor in (*engine.inputs, *engine.outputs)}
    found: set[bool] = set()
    entries: list[ModelInput | ModelOutput] = [*config.input, *config.output]
    for entry in entries:
        if isinstance(entry, ModelInput) and entry.allow_ragged_batch:
            return True
        dims = model_dims(entry)
        tensor = tensors.get(entry.name)
        if tensor is None or not entry.dims:
            continue
        if tensor.is_shape:
            found.add(bool(dims) and tensor.shape[:1] == (dims[0] + 1,))
        else:
            found.add(len(tensor.shape) == len(dims) + 1)
    if len(found) > 1:
        raise BackendFailed(
            f"unable to autofill for '{config.name}', model tensor configurations are contradicting each other in "
            "terms of whether batching is supported",
            hint="the dims of all tensors must have the batch dimension, or none",
        )
    return found.pop() if found else None


def _fill_side(entries: Any, tensors: Sequence[EngineTensor], batching: bool) -> None:
    """Fill the inputs or the outputs of a configuration; without any they become those of the engine."""
    by_name = {tensor.name: tensor for tensor in tensors}
    for name in by_name if not entries else ():
        entries.add(name=name)
    for entry in entries:
        if (found := by_name.get(entry.name)) is not None:
            _fill(entry, found, batching)


def _fill(entry: ModelInput | ModelOutput, tensor: EngineTensor, batching: bool) -> None:
    if entry.is_shape_tensor and not tensor.is_shape:
        raise ConfigInvalid(
            f"'{entry.name}' is incorrectly specified as a shape tensor.", hint="remove is_shape_tensor"
        )
    if entry.is_non_linear_format_io and tensor.is_linear:
        raise ConfigInvalid(
            f"'{entry.name}' uses a linear IO format, but 'is_non_linear_format_io' is incorrectly set to true in the "
            "model configuration.",
            hint="remove is_non_linear_format_io",
        )
    entry.is_shape_tensor = tensor.is_shape
    if not entry.data_type:
        entry.data_type = data_type_of(BY_NAME.get(tensor.datatype))
    if entry.dims:
        return
    if tensor.is_shape:
        entry.dims.extend([dim - batching for dim in tensor.shape] or [1])
        return
    dims = tensor.shape[1:] if batching else tensor.shape
    entry.dims.extend([dim or -1 for dim in dims] or [1])
    if not dims:
        entry.reshape.SetInParent()


def check_compatible(config: ModelConfig, engine: EngineDescription) -> None:
    """Raise a ServerError with every contradiction between `config` and the engine, in Triton's texts."""
    for tensor in (*engine.inputs, *engine.outputs):
        if not tensor.is_linear:
            raise Unsupported(
                f"unable to load model '{config.name}', tensor '{tensor.name}' has another format than linear",
                hint="build the plan with linear inputs and outputs: trtexec --inputIOFormats=fp32:chw",
            )
    check_batch(config, supported_batch(config, engine))
    problems = list(_contradictions(config, engine))
    # The engine's signature, where a -1 of either side fits the other, and shape tensors fit: those are checked by
    # themselves.
    batching = config.max_batch_size > 0
    adapted: list[tuple[TensorSignature, ...]] = []
    for _, entries, tensors in _sides(config, engine):
        by_name = {entry.name: entry for entry in entries}
        adapted.append(tuple(_fitted(tensor, by_name.get(name), batching) for name, tensor in tensors.items()))
    # The number of inputs is checked above, with TensorRT's own texts.
    general = validate_against_signature(config, ModelSignature(adapted[0], adapted[1]), config.name)
    problems += [problem for problem in general if problem.path != "input"]
    if problems:
        raise InvalidModelConfig(problems)


def _contradictions(config: ModelConfig, engine: EngineDescription) -> Iterator[Problem]:
    targets = {name for entry in config.batch_input for name in entry.target_name}
    inputs = {*(entry.name for entry in config.input), *own_inputs(config), *targets}
    outputs = {*(entry.name for entry in config.output), *own_outputs(config)}
    if len(inputs) > len(engine.inputs):
        text = f"unable to load model '{config.name}', configuration expects {len(inputs)} inputs, model provides "
        yield Problem("input", f"{text}at most {len(engine.inputs)}", f"the inputs are: {_names(engine.inputs)}")
    if missing := [tensor for tensor in engine.inputs if tensor.name not in inputs]:
        text = "failed to specify the dimensions of all input tensors or values of all input shape tensors"
        yield Problem("input", text, f"add to the configuration: {_names(missing)}")
    for tensor in engine.outputs:
        if tensor.name not in outputs:
            text = f"expected configuration for output '{tensor.name}' for {config.name}"
            yield Problem("output", text, f"the outputs are: {_names(engine.outputs)}")
    used = profile_indices(config, [name for group in config.instance_group for name in group.profile], engine.profiles)
    for side, entries, tensors in _sides(config, engine):
        for index, entry in enumerate(entries):
            if (found := tensors.get(entry.name)) is not None:
                yield from _tensor_problems(config, entry, found, used, f"{side}[{index}]")


def _tensor_problems(
    config: ModelConfig, entry: ModelInput | ModelOutput, tensor: EngineTensor, profiles: Sequence[int], path: str
) -> Iterator[Problem]:
    side, batching = path.partition("[")[0], config.max_batch_size > 0
    row = datatype_of(entry.data_type)
    if not tensor.datatype:
        text = f"unsupported datatype '{tensor.type_name}' for tensor '{entry.name}' for model '{config.name}'"
        yield Problem(f"{path}.data_type", text, "cast it inside the network: no protocol has this datatype")
    elif row is None or row.name != tensor.datatype:
        wanted = DataType.Name(entry.data_type) if row else "TYPE_INVALID"
        text = f"unexpected datatype TYPE_{tensor.datatype} for inference {side} '{entry.name}', expecting {wanted}"
        yield Problem(f"{path}.data_type", f"{text} for {config.name}", f"data_type: TYPE_{tensor.datatype}")
    if entry.is_shape_tensor is not tensor.is_shape:
        kind = "a shape tensor" if entry.is_shape_tensor else "an execution tensor"
        text = f"'{entry.name}' is incorrectly specified as {kind}."
        yield Problem(f"{path}.is_shape_tensor", text, f"is_shape_tensor: {str(tensor.is_shape).lower()}")
    elif tensor.is_shape:
        if tensor.shape and tuple(entry.dims) != tuple(dim - batching for dim in tensor.shape):
            text = f"unable to load model '{config.name}', binding '{entry.name}' shape expected by framework "
            text += f"{shape_text(tensor.shape)} doesn't match model configuration shape {shape_text(entry.dims)}"
            hint = "with batching the server adds the batch size in front: one value less" if batching else ""
            yield Problem(f"{path}.dims", text, hint)
    elif isinstance(entry, ModelInput) and not entry.allow_ragged_batch:
        shape = (-1, *model_dims(entry)) if batching else model_dims(entry)
        outside = [dims_problem(tensor, profile, shape, int(batching)) for profile in profiles]
        if all(outside) and len(shape) == len(tensor.shape):  # no profile takes them
            text = f"model configuration specified invalid shape for input '{entry.name}' for model {config.name}. "
            yield Problem(f"{path}.dims", f"{text}Error details: {outside[0]}")


def _fitted(tensor: EngineTensor, entry: ModelInput | ModelOutput | None, batching: bool) -> TensorSignature:
    if entry is None:
        return TensorSignature(tensor.name, tensor.datatype, tensor.shape)
    row = datatype_of(entry.data_type)
    found = TensorSignature(tensor.name, row.name if row else "", tensor.shape)
    wanted = (-1, *model_dims(entry)) if batching else model_dims(entry)
    if tensor.is_shape:
        return replace(found, shape=wanted)
    if isinstance(entry, ModelInput) and entry.allow_ragged_batch:
        return replace(found, shape=(-1,) if len(tensor.shape) == 1 else tensor.shape)
    if len(wanted) != len(tensor.shape):
        return found
    # A fixed first dimension is the only batch that the engine takes.
    fitted = [mine if -1 in (mine, own) else own for mine, own in zip(wanted, tensor.shape, strict=True)]
    return replace(found, shape=tuple(fitted))


def _sides(
    config: ModelConfig, engine: EngineDescription
) -> Iterator[tuple[str, Sequence[ModelInput | ModelOutput], dict[str, EngineTensor]]]:
    yield "input", config.input, {tensor.name: tensor for tensor in engine.inputs}
    yield "output", config.output, {tensor.name: tensor for tensor in engine.outputs}


def _names(tensors: Sequence[EngineTensor]) -> str:
    return ", ".join(tensor.name for tensor in tensors)
