"""ModelHost: the model of a stub process, from its import to its end, and the event loop of its coroutines.

asyncio is imported by the first coroutine: it would take a tenth of the start of every process.
Source: docs/spec/python-backend.md sections 4.1, 4.2, 4.6, 4.7 and 4.8.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Optional

from .inference import (
    CLOSED_SENDER,
    RELEASE_ALL,
    RELEASE_RESCHEDULE,
    InferenceRequest,
    InferenceResponse,
    SenderState,
)
from .model import (
    ModelConfig,
    ModelFailed,
    Phase,
    RunningModel,
    TritonError,
    TritonModelException,
    exception_text,
    import_model,
    set_running_model,
    using_decoupled_model_transaction_policy,
)
from .server import LogLevel, current, drop_unused

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

Responses = Sequence[Optional[InferenceResponse]]

# Time for coroutines that still run at the end to notice that they are cancelled.
_LAST_SECONDS = 2.0


_TOO_LATE = (
    "the request was given back after `execute` had returned, when it is too late: a coroutine of a decoupled model "
    "cannot set TRITONSERVER_REQUEST_RELEASE_RESCHEDULE"
)


class BrokenContract(Exception):
    """`execute` returned something invalid. The text is Triton's, and goes to the client as it is."""


class ModelHost:
    """One model and its instance of TritonPythonModel. Made by the program, once a server is connected.

    All calls but `is_ready` come from the main thread, one at a time.
    """

    def __init__(self, args: dict[str, str], model_file: str) -> None:
        """`args` are those of `initialize` (section 4.1); `model_file` is the absolute path of the model's file."""
        self._args = args
        self._file = model_file
        self._instance_name = args["model_instance_name"]
        config = json.loads(args["model_config"])
        self._decoupled = using_decoupled_model_transaction_policy(config)
        self._model = RunningModel(
            name=args["model_name"],
            directory=os.path.join(args["model_repository"], args["model_version"]),
            decoupled=self._decoupled,
            outputs=frozenset(output["name"] for output in config.get("output", ())),
        )
        set_running_model(self._model)
        self._loop = EventLoop()
        self._instance: Any = None
        self._execute: Callable[[list[InferenceRequest]], Any] | None = None
        self._without_execute = f"Python model {self._file} does not implement `execute` method."

    def auto_complete(self, config: str) -> str:
        """The configuration (JSON) as the model completes it. Raises ModelFailed. No instance is made for it."""
        try:
            model_class = import_model(self._file, self._model.directory)
            if not hasattr(model_class, "auto_complete_config"):
                return config
            completed = model_class.auto_complete_config(ModelConfig(config))
            if isinstance(completed, ModelConfig):
                return json.dumps(completed.as_dict())
        except BaseException as error:
            raise _failure(error) from error
        raise ModelFailed(
            f"auto_complete_config function in model '{self._model.name}' must return a valid pb.ModelConfig object."
        )

    def require_execute(self) -> None:
        """Raise ModelFailed without the method: the model would load, and fail each request."""
        if self._execute is None:
            raise ModelFailed(self._without_execute)

    def initialize(self, only_import: bool = False) -> None:
        """Import the file and, unless `only_import`, make the instance and initialize it. Raises ModelFailed."""
        try:
            model = import_model(self._file, self._model.directory)
            if not only_import:
                self._instance = model = model()
                if hasattr(model, "initialize"):
                    model.initialize(self._args)
                self._model.phase = Phase.SERVING
            self._execute = getattr(model, "execute", None)
        except BaseException as error:
            raise _failure(error) from error

    def execute(self, requests: list[InferenceRequest]) -> Responses:
        """Execute a batch: for each request its final response, or None if its sender answers it, now or later.

        Never raises: what the model raises is the error of each request that is still open, also of a decoupled model.
        The server side releases what the requests hold when the model has let go of them.
        """
        responses: list[InferenceResponse | None] = []
        try:
            if self._execute is None:
                raise BrokenContract(self._without_execute)
            # A copy: requests that the model removes from its list must still be answered.
            returned = self._execute(requests[:])
            if returned.__class__ is not list and isinstance(returned, Coroutine):
                if self._decoupled:
                    self._check(requests, None, responses)
                    # Its requests stay open until it ends.
                    self._loop.start(returned).add_done_callback(
                        lambda future: self._end_in_background(future, requests)
                    )
                    return responses
                returned = self._loop.run(returned)
            self._check(requests, returned, responses)
        except BaseException as error:
            responses = self._failed(requests, error, responses)
            if None in responses:
                # Some clients have their answers, and do not learn of the error.
                self._log(_reason(error))
        drop_unused()
        return responses

    def is_rescheduled(self, request: InferenceRequest) -> bool:
        """Return True if the model gave the request back, to be queued again (section 4.8), and has not ended it."""
        return request._release_flags == RELEASE_RESCHEDULE and request._sender is CLOSED_SENDER

    def is_ready(self) -> bool:
        """Return the answer of the model's `is_ready`; true if it has none. Any thread. Raises ModelFailed."""
        if not hasattr(self._instance, "is_ready"):
            return True
        try:
            ready = self._instance.is_ready()
            if isinstance(ready, Coroutine):
                ready = self._loop.run(ready)
        except BaseException as error:
            raise _failure(error) from error
        if not isinstance(ready, bool):
            raise ModelFailed("is_ready() must return a boolean value")
        return ready

    def finalize(self) -> None:
        was_serving, self._model.phase = self._model.phase is Phase.SERVING, Phase.ENDING
        self._loop.stop(_LAST_SECONDS)
        if was_serving and hasattr(self._instance, "finalize"):
            try:
                self._instance.finalize()
            except BaseException as error:
                self._log(exception_text(error))
        self._instance = self._execute = None

    def _check(
        self, requests: list[InferenceRequest], returned: Any, responses: list[InferenceResponse | None]
    ) -> None:
        """Put what `execute` returned, with the requested outputs only, into `responses`, and close those requests.

        Raises BrokenContract; `responses` then has those that were closed before.
        """
        if returned is None:
            for request in requests:
                _leave_open(request, "returned None")
            responses += [None] * len(requests)
            return
        if self._decoupled:
            raise self._decoupled_returned()
        if not isinstance(returned, list):
            raise BrokenContract(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(returned) != len(requests):
            raise BrokenContract(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
            )
        for request, response in zip(requests, returned):
            if response is not None:
                if request._release_flags == RELEASE_RESCHEDULE:
                    raise BrokenContract(
                        "Expected a None object in the execute function return list for reschduled request, found type "
                        f"'{type(response)}'."
                    )
                if not isinstance(response, InferenceResponse):
                    raise BrokenContract(
                        "Expected an 'InferenceResponse' object in the execute function return list, found type "
                        f"'{type(response)}'."
                    )
                if request._sender is None:
                    request._sender = CLOSED_SENDER
                else:
                    try:
                        request._sender._advance(True, True)
                    except TritonModelException as error:
                        raise BrokenContract(str(error)) from error
                response = response._with_outputs(request._requested)
            else:
                _leave_open(request, "returned None in its list for this request")
            responses.append(response)

    def _decoupled_returned(self) -> BrokenContract:
        return BrokenContract(
            f"Python model '{self._instance_name}' is using the decoupled mode and the execute function must return "
            "None."
        )

    def _failed(
        self, requests: list[InferenceRequest], error: BaseException, responses: Responses
    ) -> list[InferenceResponse | None]:
        """An error for each request that is open, or was closed for one of `responses`, which are discarded.

        A request that has its one response, but not the final flag, is ended.
        """
        reason = f"Failed to process the request(s) for model '{self._instance_name}', message: {_reason(error)}"
        failure = InferenceResponse(error=TritonError(reason))
        kept = [*responses, *[None] * (len(requests) - len(responses))]
        outcomes: list[InferenceResponse | None] = []
        for request, answer in zip(requests, kept):
            was = _close(request)
            is_open = was is SenderState.OPEN or self.is_rescheduled(request)
            request._release_flags = RELEASE_ALL
            outcomes.append(failure if answer or is_open else None)
            if was is SenderState.ANSWERED:
                current().send(request._number, None, True)
        return outcomes

    def _end_in_background(self, future: Future[Any], requests: list[InferenceRequest]) -> None:
        """Check the result of a coroutine of a decoupled model. On the thread of the event loop."""
        try:
            if future.result() is not None:
                raise self._decoupled_returned()
            for request in requests:
                if request._release_flags == RELEASE_RESCHEDULE and _close(request) is not SenderState.CLOSED:
                    current().send(request._number, InferenceResponse(error=TritonError(_TOO_LATE)), True)
        except BaseException as error:
            self._log(_reason(error))
            for request, failure in zip(requests, self._failed(requests, error, [])):
                if failure is not None:
                    current().send(request._number, failure, True)

    def _log(self, message: str) -> None:
        current().log(LogLevel.ERROR.value, message, os.path.basename(self._file), 0)


def _leave_open(request: InferenceRequest, how: str) -> None:
    """Leave `request`, for which `execute` returned no response, to its sender; close that if it was given back.

    `how` says what `execute` returned.
    """
    was_asked_for = request._sender is not None
    sender = request._open_sender()
    if not was_asked_for:
        sender._unused = how
    if request._release_flags == RELEASE_RESCHEDULE and sender._close() is not SenderState.CLOSED:
        request._sender = CLOSED_SENDER


def _close(request: InferenceRequest) -> SenderState:
    """Close the sender of `request`, whether it exists or not. Returns its previous state."""
    if request._sender is not None:
        return request._sender._close()
    request._sender = CLOSED_SENDER
    return SenderState.OPEN


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, BrokenContract) else exception_text(error)


def _failure(error: BaseException) -> ModelFailed:
    return error if isinstance(error, ModelFailed) else ModelFailed(exception_text(error))


class EventLoop:
    """An event loop on a thread of its own, started when it is first needed. Any other thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.start(coroutine).result()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        import asyncio

        return asyncio.run_coroutine_threadsafe(coroutine, self._running())

    def stop(self, timeout_s: float) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or loop.is_closed():
            return
        loop.call_soon_threadsafe(_cancel_all, loop)
        thread.join(timeout_s)
        if not thread.is_alive():
            loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        import asyncio

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="model event loop", daemon=True)
                self._thread.start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    asyncio.set_event_loop(loop)
    while True:
        try:
            loop.run_forever()
            return
        except (SystemExit, KeyboardInterrupt):
            # Raised by a coroutine: it ends the loop before the waiters for that coroutine are told.
            continue


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        # They run once more to see the cancellation.
        asyncio.gather(*tasks, return_exceptions=True).add_done_callback(lambda _: loop.stop())
    else:
        loop.stop()
