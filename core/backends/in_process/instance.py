"""One instance of a model whose framework runs in this process. It executes one batch at a time.

Source: docs/spec/onnxruntime-backend.md section 5.5; docs/spec/framework-backends.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

from core.backends.base import Execution
from core.backends.tensors.gatherer import Gatherer, batch_total
from core.backends.tensors.splitter import Splitter
from core.config.model_spec import ModelSpec
from core.config.placement import DeviceKind, Placement
from core.errors import ServerError
from core.inference.request import InferenceRequest, OutputMemory
from core.inference.response_sender import ResponseSender
from core.inference.tensors import Array

# Takes output names, a feed and run options, and returns the outputs in the order of the names.
Run = Callable[[list[str], Mapping[str, Array], Any], Sequence[Array]]
# The same, with large outputs in memory of the request, if there is enough.
RunPlaced = Callable[[list[str], Mapping[str, Array], Any, OutputMemory], Sequence[Array]]


def _never(exc: BaseException) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Failures:
    """What a framework raises. `error_of` makes the server's error of an exception and the name of the model.

    `is_poison` tells whether an exception means that nothing can run again on the GPU in this process.
    """

    exceptions: tuple[type[Exception], ...]
    error_of: Callable[[Exception, str], ServerError]
    is_poison: Callable[[BaseException], bool] = _never


class InProcessInstance:
    """Implements BackendInstance.

    `run` and `run_options` belong to the weights on the device, which several instances may share. `run_placed` is for
    a request that runs alone, of a model that `may_bind`.
    """

    def __init__(
        self,
        placement: Placement,
        spec: ModelSpec,
        gatherer: Gatherer,
        splitter: Splitter,
        run: Run,
        failures: Failures,
        *,
        run_options: Any = None,
        may_run_inline: bool = False,
        on_close: Callable[[], None] | None = None,
        run_placed: RunPlaced | None = None,
    ) -> None:
        self.placement = placement
        self.may_run_inline = may_run_inline
        self.answers_later = False
        self.poisoned = False
        self._spec = spec
        self._gatherer = gatherer
        self._splitter = splitter
        self._run = run
        self._run_placed = run_placed
        self._run_options = run_options
        self._failures = failures
        self._exceptions = failures.exceptions
        self._on_close = on_close
        self._names = list(spec.outputs)

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        """Execute `requests` as one batch. Raises BackendFailed or OutOfMemory if the whole batch failed."""
        spec = self._spec
        total = batch_total(batch_sizes, spec.max_batch_size, spec.name)
        try:
            feed = self._gatherer.gather(requests, total)
            gathered_ns = monotonic_ns()
            memory = requests[0].output_memory
            # Who traces a request may want to see its tensors later, when their memory is in use again.
            if memory is None or self._run_placed is None or len(requests) > 1 or requests[0].trace is not None:
                results = self._run(self._names, feed, self._run_options)
            else:
                results = self._run_placed(self._names, feed, self._run_options, memory)
        except self._exceptions as exc:
            raise self._failure(exc) from exc
        finished_ns = monotonic_ns()
        return Execution(self._splitter.split(requests, batch_sizes, results, total), gathered_ns, finished_ns)

    def _failure(self, exc: Exception) -> ServerError:
        if self.placement.kind is DeviceKind.GPU and self._failures.is_poison(exc):
            self.poisoned = True
        error = self._failures.error_of(exc, self._spec.name)
        error.__cause__ = exc  # the log asks for it, and in compiled code `raise ... from` does not set it
        return error

    def close(self) -> None:
        """Free the buffers and drop what it runs."""
        self._gatherer.close()
        self._run = _closed
        self._run_placed = None
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


def _closed(names: list[str], feed: Mapping[str, Array], run_options: Any) -> Sequence[Array]:
    raise RuntimeError("the instance is closed")
