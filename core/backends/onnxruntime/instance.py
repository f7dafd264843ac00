"""One instance of an ONNX model: executes a batch at a time.

Source: docs/spec/onnxruntime-backend.md section 5.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any

from core.backends.base import Execution
from core.backends.onnxruntime.errors import failure_of, is_poison
from core.backends.onnxruntime.strings import to_bytes, to_text
from core.backends.tensors.gather import Gatherer, batch_total
from core.backends.tensors.split import Splitter
from core.config.model_spec import ModelSpec
from core.config.placement import DeviceKind, Placement
from core.inference.request import InferenceRequest
from core.inference.tensors import Array

# (output names, feed, run options) -> the outputs in that order; a session's own method, or something in front of it.
Run = Callable[[list[str], Mapping[str, Array], Any], Sequence[Array]]


class OnnxInstance:
    """A backend instance. `poisoned` is set when its GPU cannot be used any more in this process.

    `run` and what is passed with it belong to the session, which instances on one device share; `failures` are the
    exceptions that ONNX Runtime raises. `may_run_inline` is the protocol's.
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
        self.poisoned = False
        self._spec = spec
        self._gatherer = gatherer
        self._splitter = splitter
        self._run = run
        self._run_options = run_options
        self._failures = failures
        self._names = list(spec.outputs)

    def execute(self, requests: Sequence[InferenceRequest], batch_sizes: Sequence[int]) -> Execution:
        """Execute `requests` as one batch. Raises BackendFailed or OutOfMemory when the whole batch failed."""
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
        """Let go of the buffers and of the session."""
        self._gatherer.close()
        self._run = _closed


class TextRun:
    """Runs a session whose inputs or outputs hold BYTES: as text while they are text, otherwise by `values`."""

    def __init__(self, run: Run, values: Run) -> None:
        self._run = run
        self._values = values

    def __call__(self, names: list[str], feed: Mapping[str, Array], run_options: Any) -> Sequence[Array]:
        try:
            texts = {name: to_text(array) if array.dtype.hasobject else array for name, array in feed.items()}
            results = self._run(names, texts, run_options)
        except UnicodeDecodeError:
            # Bytes that are no text, on the way in or, after the run, on the way out.
            return self._values(names, feed, run_options)
        return [to_bytes(result) if result.dtype.hasobject else result for result in results]


def _closed(names: list[str], feed: Mapping[str, Array], run_options: Any) -> Sequence[Array]:
    raise RuntimeError("the instance is closed")
