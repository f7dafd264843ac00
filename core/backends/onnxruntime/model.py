"""One loaded version of an ONNX model: its sessions, one for each device, and the instances on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnxruntime

from trident.core.backends.backend import BackendInstance, OnChange
from trident.core.backends.devices import PinnedMemory
from trident.core.backends.in_process import DeviceWeights, Failures, Run, length_axes, make_instance
from trident.core.backends.onnxruntime.graph import has_bounded_graph, model_path, named_axes
from trident.core.backends.onnxruntime.runs import BF16, DeviceRun, PlacedRun, TextRun, ValueRun, strings_work
from trident.core.backends.onnxruntime.session import FAILURES, SessionSettings, failure_of, is_poison, run_options
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.inference.tensors import BYTES
from trident.core.observability.metrics.snapshot import ModelProcessMetrics

# ONNX Runtime's name for the memory of a GPU.
_CUDA = "cuda"
_CPU_PROVIDER = "CPUExecutionProvider"
_FAILURES = Failures(FAILURES, failure_of, is_poison)


class OnnxModel:
    """Implements BackendModel. Loader threads, several at once.

    All instances on one device share a session, which any number of threads may run: the weights are in memory once
    for each device. `sessions` are by device. `make_session` makes and checks one for the device of a placement; it is
    called for a device that has none. `version` is the version directory. `labels` are those of ZipMap nodes.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: ModelConfig,
        settings: SessionSettings,
        sessions: dict[str, Any],
        make_session: Callable[[Placement], Any],
        version: Path,
        labels: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        self.labels = labels
        self._spec = spec
        self._config = config
        self._settings = settings
        self._version = version
        self._sessions = DeviceWeights(make_session, sessions)
        self._axes: Mapping[str, tuple[int, ...]] | None = None

    def describe(self) -> dict[str, str]:
        """`device`, `execution provider` (of each session the first, which runs all it can) and `threads`."""
        sessions = self._sessions.loaded
        active = {session.get_providers()[0]: None for session in sessions.values()}
        return {
            "device": ", ".join(sessions),
            "execution provider": ", ".join(active),
            "threads": self._settings.thread_plan,
        }

    def instance(self, placement: Placement) -> BackendInstance:
        """An instance on the session of its device, which it makes if there is none. Raises a ServerError."""
        session = self._sessions.of(placement)
        on_gpu = placement.kind is DeviceKind.GPU
        run = self._run(session, placement)
        pinned = PinnedMemory.open(placement.device_id) if on_gpu else None
        return make_instance(
            placement,
            self._spec,
            self._config,
            run,
            _FAILURES,
            self._length_axes(session),
            scalars=frozenset(argument.name for argument in session.get_inputs() if not argument.shape),
            on_buffer=pinned.replace if pinned is not None else None,
            run_options=run_options(self._settings),
            # A GPU keeps state for each thread that runs on it, so its instances stay on their own threads.
            may_run_inline=not on_gpu and self._is_bounded,
            bound_run=run if isinstance(run, DeviceRun) else None,
            run_placed=self._placed(session, run),
        )

    trouble = ""

    def watch(self, on_change: OnChange) -> None:
        """An instance can always execute."""

    def check_ready(self) -> None:
        """An ONNX model is always ready."""

    def processes(self) -> list[ModelProcessMetrics]:
        return []

    def retain(self, devices: Iterable[str]) -> None:
        """Release the sessions on all devices except `devices`. Instances that use one keep it until they close."""
        self._sessions.retain(devices)

    def close(self) -> None:
        """Release the sessions. ONNX Runtime frees each when the last instance on it has closed as well."""
        self._sessions.close()

    def _length_axes(self, session: Any) -> Mapping[str, tuple[int, ...]]:
        """Found once, because they are the same on every device."""
        buckets = self._spec.buckets
        if buckets is not None and self._axes is None:
            self._axes = length_axes(self._spec, buckets, named_axes(session, buckets))
        return self._axes or {}

    @cached_property
    def _is_bounded(self) -> bool:
        libraries = self._config.model_operations.op_library_filename
        return not libraries and has_bounded_graph(model_path(self._version, self._config))

    def _placed(self, session: Any, run: Run) -> PlacedRun | None:
        """`run` for outputs that are written where they are sent from, if the graph says how large some are."""
        if isinstance(run, (TextRun, ValueRun)) or session.get_providers()[0] != _CPU_PROVIDER:
            return None
        placed = PlacedRun(session, onnxruntime.OrtValue, run, self._spec)
        return placed if placed.knows_shapes else None

    def _run(self, session: Any, placement: Placement) -> Run:
        """How an instance runs the session: on arrays where that is possible, otherwise on ONNX Runtime's values."""
        # This is the inner method that the public `run` calls. The public one spends 3 µs on checks that the request
        # validation has already made, and falls back to the CPU silently and permanently when a GPU fails.
        run: Run = getattr(session, "_sess", session).run
        spec = self._spec
        inputs = {name: tensor.datatype for name, tensor in spec.inputs.items()}
        outputs = {name: tensor.datatype for name, tensor in spec.outputs.items()}
        used = {*inputs.values(), *outputs.values()}
        on_gpu = placement.kind is DeviceKind.GPU
        if not on_gpu and BYTES not in used and BF16 not in used:
            return run
        ort_value = onnxruntime.OrtValue
        splits = BYTES in used and strings_work(ort_value)
        if on_gpu and BYTES not in used:
            return DeviceRun(session, ort_value, spec, splits, _CUDA, placement.device_id)
        values = ValueRun(session, ort_value, inputs, outputs, splits)
        return TextRun(run, values, splits=splits) if BYTES in used and BF16 not in used else values
