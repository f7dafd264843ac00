"""One instance of an ONNX model, which executes one batch at a time.

Source: docs/spec/onnxruntime-backend.md section 5.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any

from core.backends.base import Execution
from core.backends.onnxruntime.errors import failure_of, is_poison
from core.backends.tensors.gatherer import Gatherer, batch_total
from core.backends.tensors.splitter import Splitter
from core.config.model_spec import ModelSpec
from core.config.placement import DeviceKind, Placement
from core.inference.request import InferenceRequest
from core.inference.response_sender import ResponseSender
from core.inference.tensors import Array

# Takes output names, a feed and run options, and returns the outputs in the order of the names.
Run = Callable[[list[str], Mapping[str, Array], Any], Sequence[Array]]


class OnnxInstance:
    """Implements BackendInstance.

    `run` and `run_options` belong to the session, which all instances on one device share. `failures` are the
    exceptions that ONNX Runtime raises.
    """

    def __init__(
        self,
        placement: Placement,
        spec: ModelSpec,
        gatherer: Gatherer,
        splitter: Splitter,
        run: Run,
        run_options: Any,
        failures: tuple[type[Exception], ...],
        may_run_inline: bool,
    ) -> None:
        self.placement = placement
        self.may_run_inline = may_run_inline
        self.answers_later = False
        self.poisoned = False
        self._spec = spec
        self._gatherer = gatherer
        self._splitter = splitter
        self._run = run
        self._run_options = run_options
        self._failures = failures
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
            results = self._run(self._names, feed, self._run_options)
        except self._failures as exc:
            if self.placement.kind is DeviceKind.GPU and is_poison(exc):
                self.poisoned = True
            raise failure_of(exc, spec.name) from exc
        finished_ns = monotonic_ns()
        return Execution(self._splitter.split(requests, batch_sizes, results, total), gathered_ns, finished_ns)

    def close(self) -> None:
        """Free the buffers and drop the session."""
        self._gatherer.close()
        self._run = _closed


def _closed(names: list[str], feed: Mapping[str, Array], run_options: Any) -> Sequence[Array]:
    raise RuntimeError("the instance is closed")
