"""Python functions as models: the decorator, their folders in a repository, the backend that runs them here, and the
Python model that runs one in a process of its own."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf import text_format

from trident.core.backends.backend import Backend, BackendInstance, BackendModel, Execution, LoadContext, OnChange
from trident.core.backends.in_process import Failures, Framework, InProcessModel, Runner
from trident.core.config.placement import Placement
from trident.core.config.problem import ModelSignature
from trident.core.config.schema import ModelConfig, datatype_of
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, ConfigInvalid, InvalidRequest, ServerError
from trident.core.inference.pending_request import LATER, DeferredOutcome, ResponseSender
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import OutputTensor
from trident.core.inference.tensors import BY_NAME, BYTES, DATATYPES, Array, Datatype, bytes_array
from trident.core.observability.statistics import ModelProcessMetrics

FUNCTION = "function"
"""The name of the backend, which only a server with functions has."""

# A datatype of the v2 protocol or of numpy, and perhaps the dims of config.pbtxt, without the batch dimension.
Tensor = str | type | tuple[str | type, Sequence[int]]
# Takes the inputs as keyword arguments; returns or yields the outputs by name, or the only one.
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class FunctionModel:
    """A function that `@trident.model` made a model of. Calling it calls the function."""

    function: Function
    config: ModelConfig
    processes: int

    @property
    def name(self) -> str:
        return str(self.config.name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def model(
    *,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    name: str = "",
    max_batch_size: int = 0,
    instances: int = 1,
    processes: int = 0,
    config: str = "",
) -> Callable[[Function], FunctionModel]:
    """Make a model of a function, for `Server(functions=[...])`; `name` is that of the function unless given.

    A tensor is a datatype (`"FP32"`, `numpy.float32`), or a pair of it and the dims as in config.pbtxt; dims are `[-1]`
    without. The function gets the inputs by name as arrays (BYTES: object arrays of `bytes`) and returns a dict of
    outputs, or the one output. With a `max_batch_size` it gets whole batches, which the dynamic batcher forms, and all
    arrays have the batch dimension first; otherwise one request. A generator function is a decoupled model: each
    dict that it yields is a response. `instances` is how many calls run at the same time, each on its own thread; with
    `processes` each of so many runs in a process of its own, which imports the function's module. `config` is text
    in the format of config.pbtxt with more settings. An exception of the function becomes the request's BackendFailed,
    a ServerError goes to the client as it is. Raises ConfigInvalid.
    """

    def made(function: Function) -> FunctionModel:
        message = ModelConfig(name=name or function.__name__, max_batch_size=max_batch_size)
        for tensors, entries in ((inputs, message.input), (outputs, message.output)):
            for each, tensor in tensors.items():
                datatype, dims = tensor if isinstance(tensor, tuple) else (tensor, (-1,))
                entries.add(name=each, data_type=_datatype(datatype).config_number, dims=dims)
        if max_batch_size:
            message.dynamic_batching.SetInParent()
        if inspect.isgeneratorfunction(function):
            message.model_transaction_policy.decoupled = True
        message.backend = "python" if processes else FUNCTION
        message.instance_group.add(count=processes or instances, kind=_KIND_CPU)
        try:
            text_format.Merge(config, message)
        except text_format.ParseError as error:
            raise ConfigInvalid(f"the config of the function '{message.name}' cannot be read: {error}") from None
        if processes and (function.__module__ == "__main__" or "<locals>" in function.__qualname__):
            raise ConfigInvalid(
                f"the function '{message.name}' cannot be found by another process",
                hint="define it in a module, outside of functions, or leave processes=0",
            )
        return FunctionModel(function, message, processes)

    return made


_KIND_CPU = 2


def _datatype(given: str | type) -> Datatype:
    found = BY_NAME.get(given) if isinstance(given, str) else None
    if found is None and not isinstance(given, str):
        kind = np.dtype(given)
        found = BY_NAME["BYTES"] if kind.kind in "OSU" else next((row for row in DATATYPES if row.dtype == kind), None)
    if found is None:
        raise ConfigInvalid(f"unknown datatype {given!r}", hint=f"one of {', '.join(BY_NAME)}, or a type of numpy")
    return found


def write_repository(folder: Path, functions: Iterable[FunctionModel]) -> None:
    for each in functions:
        version = folder / each.name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(text_format.MessageToString(each.config))
        text = ""
        if each.processes:
            function = each.function
            text = _IN_A_PROCESS.format(path=sys.path, module=function.__module__, name=function.__qualname__)
        (version / "model.py").write_text(text)


_IN_A_PROCESS = """\
import sys
from importlib import import_module

sys.path += [each for each in {path!r} if each not in sys.path]
from trident.app.library.functions import model_of

TritonPythonModel = model_of(import_module({module!r}).{name})
"""


def make_function_backend(functions: Iterable[FunctionModel]) -> Callable[[Mapping[str, str]], Backend]:
    """A maker for the registry, of the backend that runs these functions."""
    by_name = {each.name: each.function for each in functions}
    return lambda settings: _FunctionBackend(by_name)


class _FunctionBackend:
    """Implements Backend. Loader threads, several at once."""

    supports_gpus = False

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature | None:
        return None

    def check(self, config: ModelConfig) -> None:
        if config.name not in self._functions:
            raise ConfigInvalid(f"no function was given for the model '{config.name}'", model=config.name)

    def load(self, context: LoadContext) -> BackendModel:
        self.check(context.config)
        function = self._functions[context.config.name]
        if context.spec.decoupled:
            return _StreamingModel(function, context.spec)
        datatypes = {name: output.datatype for name, output in context.spec.outputs.items()}

        def run(names: list[str], feed: Mapping[str, Array], run_options: Any) -> list[Array]:
            """Call the function with a batch. Several threads, if the model has instances."""
            try:
                found = output_arrays(function, function(**locked(feed)), datatypes)
            except BaseException as error:  # of the user's function
                raise failure_of(error, context.spec.name) from error
            # As views: an array that the function keeps does not become the caller's own (`outputs_of`).
            return [found[name].view() for name in names]

        runner = Runner(run=run)
        return InProcessModel(
            context,
            Framework(
                load=lambda placement: function,
                runner=lambda weights, placement: runner,
                failures=Failures((Exception,), failure_of),
                provider=lambda weights: "Python",
                threads="",
            ),
        )


def locked(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The same arrays, which may not be written: they may be those of the caller, or of another step of an ensemble."""
    views = {name: array.view() for name, array in inputs.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def failure_of(error: BaseException, name: str) -> ServerError:
    if isinstance(error, ServerError):
        return error
    return BackendFailed(f"the function of model '{name}' failed: {type(error).__name__}: {error}", model=name)


def output_arrays(function: Function, result: Any, spec: Mapping[str, Datatype]) -> dict[str, Array]:
    """The outputs by name that `function` returned or yielded as `result`. Raises BackendFailed."""
    given = result if isinstance(result, Mapping) else dict.fromkeys(spec, result) if len(spec) == 1 else {}
    if given.keys() != spec.keys():
        got = ", ".join(map(str, given)) or f"a value of type {type(result).__name__}"
        raise BackendFailed(f"{function.__name__} returned {got}, expected a dict of {', '.join(spec)}")
    try:
        return {each: as_array(given[each], datatype, f"output '{each}'") for each, datatype in spec.items()}
    except InvalidRequest as error:
        raise BackendFailed(f"{function.__name__} returned a wrong tensor: {error.message}", hint=error.hint) from None


class _StreamingModel:
    """Implements BackendModel for a generator function."""

    labels: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    trouble = ""

    def __init__(self, function: Function, spec: ModelSpec) -> None:
        self._function = function
        self._spec = spec

    def describe(self) -> dict[str, str]:
        return {"device": "cpu", "execution provider": "Python", "threads": ""}

    def instance(self, placement: Placement) -> BackendInstance:
        return _StreamingInstance(self._function, self._spec, placement)

    def watch(self, on_change: OnChange) -> None:
        """An instance can always execute."""

    def check_ready(self) -> None:
        """Do nothing: a function is always ready."""

    def processes(self) -> list[ModelProcessMetrics]:
        return []

    def retain(self, devices: Iterable[str]) -> None:
        """Do nothing: a function has no weights."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class _StreamingInstance:
    """Implements BackendInstance: sends what the generator yields, as fast as the client takes it."""

    poisoned = False
    may_run_inline = False
    answers_later = True

    def __init__(self, function: Function, spec: ModelSpec, placement: Placement) -> None:
        self.placement = placement
        self._function = function
        self._spec = spec
        self._datatypes = {name: output.datatype for name, output in spec.outputs.items()}

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        begin_ns = monotonic_ns()
        outcomes: list[Exception | DeferredOutcome] = [
            self._stream(request, sender) for request, sender in zip(requests, senders, strict=True)
        ]
        return Execution(outcomes, begin_ns, monotonic_ns())

    def _stream(self, request: InferenceRequest, sender: ResponseSender) -> Exception | DeferredOutcome:
        may_go_on = threading.Event()
        sender.watch(may_go_on.set)
        try:
            for result in self._function(**locked({tensor.name: tensor.array for tensor in request.inputs})):
                arrays = output_arrays(self._function, result, self._datatypes)
                while sender.is_full:
                    may_go_on.clear()
                    if sender.is_full:
                        may_go_on.wait()
                if sender.is_cancelled:
                    break  # the generator is closed
                sender.send(
                    [
                        OutputTensor(name, self._datatypes[name].name, array.shape, array.view())
                        for name, array in arrays.items()
                        if not request.outputs or name in request.outputs
                    ]
                )
        except BaseException as error:  # of the user's function
            return failure_of(error, self._spec.name)
        sender.send(None, final=True)
        return LATER

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


# --- in a process of a Python model


def model_of(function: FunctionModel) -> type:
    import triton_python_backend_utils as pb_utils  # of the process of a Python model

    config = function.config
    datatypes = {each.name: found for each in config.output if (found := datatype_of(each.data_type)) is not None}

    def inputs_of(request: Any) -> dict[str, Any]:
        found = {each.name: pb_utils.get_input_tensor_by_name(request, each.name) for each in config.input}
        return locked({name: tensor.as_numpy() for name, tensor in found.items() if tensor is not None})

    def response(result: dict[str, Any], wanted: list[str]) -> Any:
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, array) for name, array in result.items() if name in wanted]
        )

    def failed(error: Exception) -> Any:
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(failure_of(error, config.name).message))

    def answers(requests: list[Any]) -> Iterator[Any]:
        inputs = [inputs_of(request) for request in requests]
        sizes = [len(next(iter(each.values()))) for each in inputs]
        whole = {name: np.concatenate([each[name] for each in inputs]) for name in inputs[0]}
        result = output_arrays(function.function, function(**locked(whole)), datatypes)
        begin = 0
        for request, size in zip(requests, sizes, strict=True):
            rows = {name: array[begin : begin + size] for name, array in result.items()}
            yield response(rows, request.requested_output_names())
            begin += size

    def one_answer(request: Any) -> Any:
        try:
            result = output_arrays(function.function, function(**inputs_of(request)), datatypes)
            return response(result, request.requested_output_names())
        except Exception as error:  # of the user's function
            return failed(error)

    class Batches:
        def execute(self, requests: list[Any]) -> list[Any]:
            if config.max_batch_size and len(requests) > 1:
                try:
                    return list(answers(requests))
                except Exception:  # of the user's function, or inputs of several shapes: each by itself
                    pass
            return [one_answer(request) for request in requests]

    class Streams:
        def execute(self, requests: list[Any]) -> None:
            for request in requests:
                sender = request.get_response_sender()
                try:
                    for result in function(**inputs_of(request)):
                        arrays = output_arrays(function.function, result, datatypes)
                        if request.is_cancelled():
                            break
                        sender.send(response(arrays, request.requested_output_names()))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                except Exception as error:  # of the user's function
                    sender.send(failed(error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    return Streams if config.model_transaction_policy.decoupled else Batches


# --- the values of a caller in Python, and the arrays of a function, as tensors

# The kinds of numbers of which a list becomes a tensor of another kind without an unexpected loss.
_FROM: Final = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}
_NAMES: Final = {row.dtype: row.name for row in reversed(DATATYPES) if row is not BYTES and row.name != "BF16"}


def as_array(value: npt.ArrayLike, datatype: Datatype, what: str) -> Array:
    """`value` as a C-contiguous array of `datatype`. Arrays must have its type; lists of numbers are converted.

    Strings may be `str`, in UTF-8 then, or `bytes`. Raises InvalidRequest that names `what`.
    """
    try:
        if datatype is BYTES:
            return _strings(np.asarray(value, dtype=object), what)
        array = np.asarray(value)
        wanted = datatype.dtype
        if np.any(getattr(value, "mask", False)):
            raise InvalidRequest(f"{what} has masked values", hint="fill them: .filled(VALUE)")
        if isinstance(value, np.ndarray | np.generic):
            if array.dtype != wanted and not np.can_cast(array.dtype, wanted, "equiv"):
                got = _NAMES.get(array.dtype, str(array.dtype))
                raise InvalidRequest(
                    f"{what} is an array of {got}, expected {datatype.name}",
                    hint=f"convert it: .astype(numpy.{wanted.name})",
                )
        elif array.size and array.dtype.kind not in _FROM.get(datatype.kind, ""):
            raise InvalidRequest(f"{what} has values of type {array.dtype}, expected {datatype.name}")
        else:
            with np.errstate(over="raise"):
                array = np.asarray(value, dtype=wanted)
        return np.require(array, wanted, ["C", "A"])
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InvalidRequest(f"{what} is not a tensor of {datatype.name}: {error}") from error


def _strings(array: Array, what: str) -> Array:
    elements: list[Any] = array.reshape(-1).tolist()
    for index, element in enumerate(elements):
        if isinstance(element, str):
            elements[index] = element.encode()
        elif isinstance(element, bytes):
            elements[index] = bytes(element)
        else:
            raise InvalidRequest(f"{what} has an element of type {type(element).__name__}, expected str or bytes")
    return bytes_array(elements, array.shape)
