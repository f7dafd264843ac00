"""A model of a server in the same process: the calls that a caller in Python makes of it."""

from __future__ import annotations

import asyncio
import datetime
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from trident.app.library.functions import as_array
from trident.core.config.spec import ModelSpec
from trident.core.engine.in_process import InferenceEngine
from trident.core.engine.protocol import ServedModel
from trident.core.errors import DeadlineExceeded, InvalidRequest, RequestCancelled, ServerError
from trident.core.frontend.admin import model_statistics_json
from trident.core.frontend.bridge import SingleResponse, ThreadBridge
from trident.core.frontend.classification import classified
from trident.core.frontend.request import RESERVED_PARAMETERS, RESERVED_PREFIX
from trident.core.http.admin import model_config_json, model_metadata_json
from trident.core.inference.pending_request import CancelCause, PendingRequest, StreamedRequest
from trident.core.inference.request import InferenceRequest, InputTensor, Parameter
from trident.core.inference.response import InferenceResponse, Origin, OutputTensor
from trident.core.inference.tensors import BYTES, Array


class RequestOptions(TypedDict, total=False):
    """Options of a request beside its inputs; every item is optional.

    `outputs` are the names of those wanted, all by default. `classes` asks for the largest values of each output as
    BYTES `value:index[:label]`, instead of the output. `id` comes back with the response. `priority` is that of the
    model's queue policy, 0 for its default level. After `timeout_s` seconds the request is given up with
    DeadlineExceeded. A `sequence_id` other than 0 or "" makes the request one of a sequence, which `sequence_start`
    begins and `sequence_end` ends. `parameters` are for the model.
    """

    outputs: tuple[str, ...]
    classes: int
    id: str
    priority: int
    timeout_s: float | None
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool
    parameters: Mapping[str, Parameter]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and (value.isascii() or value.encode(errors="ignore").decode() == value)


def _is_unsigned(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _is_parameter(name: object, value: object) -> bool:
    is_own = _is_text(name) and name not in RESERVED_PARAMETERS and not str(name).startswith(RESERVED_PREFIX)
    is_number = isinstance(value, bool | float) or (type(value) is int and -(1 << 63) <= value < 1 << 64)
    return is_own and (is_number or _is_text(value))


_FLAG: Final = ("True or False", lambda value: isinstance(value, bool))
_OPTIONS: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "outputs": ("a tuple of names", lambda value: isinstance(value, tuple | list) and all(map(_is_text, value))),
    "classes": ("an integer from 0 to 2^64 - 1", _is_unsigned),
    "id": ("text that is UTF-8", _is_text),
    "priority": ("an integer from 0 to 2^64 - 1", _is_unsigned),
    "timeout_s": (
        f"None or seconds from 0 to {threading.TIMEOUT_MAX:.0f}",
        lambda value: value is None or (isinstance(value, int | float) and 0 <= value <= threading.TIMEOUT_MAX),
    ),
    "sequence_id": (
        "an integer from 0 to 2^64 - 1, or text that is UTF-8",
        lambda value: _is_unsigned(value) or _is_text(value),
    ),
    "sequence_start": _FLAG,
    "sequence_end": _FLAG,
    "parameters": (
        "a dict from names that are not the server's to strings, 64-bit integers, booleans and floats",
        lambda value: isinstance(value, Mapping) and all(_is_parameter(*each) for each in value.items()),
    ),
}


class Outputs(dict[str, Array]):
    """The outputs of one response by name: arrays in the shapes of the protocol, which belong to the caller.

    BYTES outputs are object arrays of `bytes`, BF16 outputs uint16 arrays of the bit patterns. `model_version` is the
    version that answered, `id` the id of the request, `parameters` are those that the model gave its response.
    """

    __slots__ = ("id", "model_version", "parameters")

    id: str
    model_version: int
    parameters: Mapping[str, Parameter]


class Model:
    """A model of a Server, by name and version. Made by `Server.model`; any thread; costs nothing to keep.

    Each call goes to the version that serves then, so that a reload needs no new object. Inputs are given by name: as
    keyword arguments, or in one mapping. A value is an array of the model's datatype in the shape that the model has,
    with its batch dimension first if the model batches, or a list of numbers, `str` or `bytes`. An array must not be
    changed before the answer is there. The methods raise ModelNotFound and ModelNotReady, InvalidRequest for wrong
    inputs, QueueFull, DeadlineExceeded, RequestCancelled, BackendFailed and OutOfMemory if the model fails, and
    ServerStopping once the server was closed: all of them ServerError.
    """

    def __init__(
        self,
        engine: Callable[[], InferenceEngine],
        bridge: ThreadBridge,
        name: str,
        version: int,
        options: RequestOptions,
    ) -> None:
        self.name = name
        self.version = version
        self._engine = engine
        self._bridge = bridge
        self._options = options

    def with_options(self, **options: Unpack[RequestOptions]) -> Model:
        """The same model, whose requests have these options (RequestOptions) beside those that they have already.

        Raises InvalidRequest for an option that is unknown, or whose value no request can have.
        """
        for option, value in options.items():
            if option not in _OPTIONS:
                raise InvalidRequest(
                    f"unknown request option '{option}'", hint=f"the options are: {', '.join(_OPTIONS)}"
                )
            form, fits = _OPTIONS[option]
            if not fits(value):
                raise InvalidRequest(f"the request option '{option}' must be {form}, got {value!r}")
        return Model(self._engine, self._bridge, self.name, self.version, {**self._options, **options})

    def infer(self, inputs: Mapping[str, npt.ArrayLike] | None = None, /, **named: npt.ArrayLike) -> Outputs:
        """The outputs for these inputs. Blocks; short executions run on the calling thread.

        Requests of several threads are batched as the model's configuration says. With a `timeout_s` raises
        DeadlineExceeded after it; an execution or a load that has begun goes on, and its answer is dropped.
        """
        served, request = self._request(inputs, named)
        timeout_s = self._options.get("timeout_s")
        if timeout_s is None:
            return outputs_of(self._bridge.infer(served, request), served.spec, self._options.get("classes", 0))
        future = self._submit(served, request)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            raise self._give_up(future) from None

    async def infer_async(
        self, inputs: Mapping[str, npt.ArrayLike] | None = None, /, **named: npt.ArrayLike
    ) -> Outputs:
        """As `infer`, for a coroutine: the event loop goes on meanwhile. Cancelling the task cancels the request."""
        if self._is_cold():
            served, request = await asyncio.to_thread(self._request, inputs, named)
        else:
            served, request = self._request(inputs, named)
        future = self._submit(served, request)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._options.get("timeout_s"))
        except TimeoutError:
            raise self._give_up(future) from None

    def submit(self, inputs: Mapping[str, npt.ArrayLike] | None = None, /, **named: npt.ArrayLike) -> Future[Outputs]:
        """Submit a request and return at once, unless its model has to be loaded on demand. `cancel` of the future
        cancels it, if it waits, and drops its answer.

        The future's callbacks run on an instance's thread, which they must not block. `timeout_s` has no effect here
        but on the queue of a model whose queue policy allows it: wait with `result(timeout)`.
        """
        return self._submit(*self._request(inputs, named))

    def stream(self, inputs: Mapping[str, npt.ArrayLike] | None = None, /, **named: npt.ArrayLike) -> Stream:
        """The responses of a decoupled model, as they arrive: an iterator, and one for `async for`."""
        served, request = self._request(inputs, named)
        return Stream(served, request, self._options.get("classes", 0))

    def is_ready(self) -> bool:
        """Return whether the model serves. Raises ModelNotFound or ModelNotReady if no such version is known."""
        return self._engine().is_model_ready(self.name, self.version)

    def metadata(self) -> dict[str, Any]:
        """Name, versions, platform, inputs and outputs, as `GET /v2/models/NAME` answers them."""
        return model_metadata_json(self._engine().model_metadata(self.name, self.version))

    def config(self) -> dict[str, Any]:
        """The complete configuration, as `GET /v2/models/NAME/config` answers it."""
        return dict(model_config_json(self._engine().model_config(self.name, self.version)))

    def statistics(self) -> dict[str, Any]:
        """Counts and times in ns of the model's first ready version, as an item of `GET /v2/models/NAME/stats`."""
        found = model_statistics_json(self._engine().model_statistics(self.name, self.version))
        statistics: dict[str, Any] = found["model_stats"][0]
        return statistics

    def _is_cold(self) -> bool:
        """Return whether a request would wait for the load of its model."""
        try:
            return self._engine().model_nowait(self.name, self.version) is None
        except ServerError:
            return False

    def _request(
        self, inputs: Mapping[str, npt.ArrayLike] | None, named: Mapping[str, npt.ArrayLike]
    ) -> tuple[ServedModel, InferenceRequest]:
        given = named if inputs is None else {**inputs, **named} if named else inputs
        try:
            served = self._engine().model(self.name, self.version, self._options.get("timeout_s"))
            tensors = inputs_of(served.spec, given)
        except ServerError as error:
            raise with_note(error) from error.__cause__
        request = InferenceRequest(self.name, tensors, model_version=self.version)
        request.wants_arrays = True
        if options := self._options:
            request.outputs = tuple(options.get("outputs", ()))
            request.id = options.get("id", "")
            request.priority = options.get("priority", 0)
            request.timeout_us = int((options.get("timeout_s") or 0) * 1e6)
            request.correlation_id = options.get("sequence_id", 0)
            request.sequence_start = options.get("sequence_start", False)
            request.sequence_end = options.get("sequence_end", False)
            request.parameters = dict(options.get("parameters") or {}) or None
        return served, request

    def _submit(self, served: ServedModel, request: InferenceRequest) -> Future[Outputs]:
        future: Future[Outputs] = Future()
        responses = SingleResponse()
        classes = self._options.get("classes", 0)

        def respond(response: InferenceResponse) -> None:
            answer = responses.gather(response)
            if answer is None or not future.set_running_or_notify_cancel():
                return
            try:
                outputs = outputs_of(answer, served.spec, classes)
            except Exception as error:  # for the caller, not for the engine's threads
                future.set_exception(error)
            else:
                future.set_result(outputs)

        pending = PendingRequest(request, respond)
        future.add_done_callback(lambda done: pending.cancel() if done.cancelled() else None)
        pending.submit_to(served)
        return future

    def _give_up(self, future: Future[Outputs]) -> DeadlineExceeded:
        future.cancel()
        seconds = f"{self._options.get('timeout_s'):g} seconds"
        return DeadlineExceeded(f"the request had no answer after {seconds}", model=self.name)

    def __repr__(self) -> str:
        return f"Model({self.name!r}, version={self.version})"


class _Arrivals:
    """The responses that were not taken yet. The engine refers to it, and not to the Stream that its caller drops."""

    def __init__(self) -> None:
        self.responses: SimpleQueue[InferenceResponse] = SimpleQueue()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.wake = asyncio.Event()

    def respond(self, response: InferenceResponse) -> None:
        """Bring a response. Any thread."""
        self.responses.put(response)
        if self.loop is not None:
            with suppress(RuntimeError):  # the loop was closed: its caller does not wait
                self.loop.call_soon_threadsafe(self.wake.set)


class Stream:
    """The responses to one request, as they arrive: iterate with `for` on a thread, or with `async for` in one event
    loop; not both. Made by `Model.stream`.

    The model sends no more than the window of the server's options ahead of what was taken. An error ends the stream
    by being raised. A stream that is left early ends with its `with`, with `cancel`, or when nothing refers to it.
    """

    def __init__(self, served: ServedModel, request: InferenceRequest, classes: int) -> None:
        self._spec = served.spec
        self._classes = classes
        self._arrivals = _Arrivals()
        self._is_over = False
        self._has_taken = False
        self._pending = StreamedRequest(request, self._arrivals.respond)
        self._pending.submit_to(served)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Outputs:
        while not self._is_over:
            self._acknowledge()
            found = self._take(self._arrivals.responses.get())
            if found is not None:
                return found
        raise StopIteration

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Outputs:
        arrivals = self._arrivals
        arrivals.loop = asyncio.get_running_loop()  # before the look at what has arrived: then a response wakes it
        while not self._is_over:
            self._acknowledge()
            arrivals.wake.clear()
            try:
                response = arrivals.responses.get_nowait()
            except Empty:
                await arrivals.wake.wait()
                continue
            found = self._take(response)
            if found is not None:
                return found
        raise StopAsyncIteration

    def cancel(self) -> None:
        """Take no more responses; the model is told. Any thread. Does nothing after the last one."""
        if not self._is_over:
            self._is_over = True
            self._pending.cancel(CancelCause.CLIENT)
            # For a thread that waits.
            error = RequestCancelled("the stream was cancelled", model=self._spec.name)
            self._arrivals.respond(InferenceResponse.failed(self._pending.request, error, Origin.CANCELLED))

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        self.cancel()

    def _acknowledge(self) -> None:
        """The caller has done with the last response when it asks for the next."""
        if self._has_taken:
            self._has_taken = False
            self._pending.take()

    def _take(self, response: InferenceResponse) -> Outputs | None:
        self._is_over = self._is_over or response.final
        self._has_taken = not response.final
        if response.final and response.error is None and not len(response.outputs):
            return None
        return outputs_of(response, self._spec, self._classes)


_CAPSULE: Final = type(datetime.datetime_CAPI)


def outputs_of(response: InferenceResponse, spec: ModelSpec, classes: int) -> Outputs:
    """The outputs of `response`, as their largest `classes` values unless it is 0. Raises the response's error."""
    if response.error is not None:
        raise with_note(response.error)
    tensors: Iterable[OutputTensor] = response.outputs
    if classes:
        tensors = [classified(output, classes, spec) for output in tensors]
    found = Outputs()
    for output in tensors:
        array = output.array
        base: object = array.base
        # Views share the batch, bytes that arrived may not be written, and a framework may use its memory again. A
        # capsule is memory that it gave to this array.
        is_own = array.flags.writeable and (base is None or type(base) is _CAPSULE)
        found[output.name] = array if is_own else array.copy()
    found.model_version = response.model_version
    found.id = response.id
    found.parameters = response.parameters or {}
    return found


def with_note(error: ServerError) -> ServerError:
    """The error, with its hint as a note, so that it ends a traceback."""
    if error.hint and not hasattr(error, "__notes__"):
        error.add_note(f"hint: {error.hint}")
    return error


def inputs_of(spec: ModelSpec, given: Mapping[str, npt.ArrayLike]) -> list[InputTensor]:
    """The inputs with the values in `given`. Raises InvalidRequest if a value does not fit the datatype."""
    tensors = []
    for name, value in given.items():
        expected = spec.inputs.get(name)
        if expected is None:
            raise InvalidRequest(
                f"unexpected inference input '{name}' for model '{spec.name}'",
                hint=f"the inputs are: {', '.join(spec.inputs)}",
                model=spec.name,
            )
        datatype = expected.datatype
        if type(value) is np.ndarray and value.dtype is datatype.dtype and value.flags.carray and datatype is not BYTES:
            array = value
        else:
            array = as_array(value, datatype, f"input '{name}' of model '{spec.name}'")
        tensors.append(InputTensor(name, datatype.name, array.shape, array))
    return tensors
