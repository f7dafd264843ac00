"""The process of a model instance as the instance uses it: a stub process and the channel to it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Any

from core.backends.base import Execution
from core.backends.model_door import ModelDoor
from core.backends.python.model_asks import ModelAsks
from core.backends.python.model_limits import ModelLimits
from core.backends.python.model_log import ModelLog
from core.backends.python.output_check import OutputCheck
from core.backends.python.readiness import ReadinessQuestion
from core.backends.python.stub_channel import StubChannel
from core.backends.python.stub_process import StubProcess
from core.backends.python.watcher import Watcher
from core.config.model_spec import ModelSpec
from core.config.placement import Placement
from core.errors import BackendFailed, ServerError
from core.inference.request import InferenceRequest
from core.inference.response_sender import ResponseSender
from core.observability.metrics.custom_metrics import CustomMetrics

_log = logging.getLogger("trident.backends.python")

_PROGRESS_EVERY_S = 10.0
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What the processes of one model version are started with.

    `file` is the model's file, `config` the configuration as JSON. `finalize_limit_s` is how long the model may take to
    finalize, in seconds. `models` are those that it may ask, `metrics` those of the whole server.
    """

    interpreter: str
    variables: Mapping[str, str]
    memory_bytes: int
    file: Path
    directory: Path
    config: str
    spec: ModelSpec
    outputs: OutputCheck
    limits: ModelLimits = field(default_factory=ModelLimits)
    finalize_limit_s: float = 30.0
    models: ModelDoor | None = None
    metrics: CustomMetrics = field(default_factory=CustomMetrics)

    def arguments(self, placement: Placement) -> dict[str, str]:
        """The `args` of the model's `initialize`."""
        return {
            "model_config": self.config,
            "model_instance_kind": placement.kind.name,
            "model_instance_name": placement.name,
            "model_instance_device_id": str(placement.device_id),
            "model_repository": str(self.directory),
            "model_version": str(self.spec.version),
            "model_name": self.spec.name,
        }


class ModelProcess:
    """`initialize` and `execute` on one thread at a time; any thread calls the other methods."""

    def __init__(self, plan: LaunchPlan, placement: Placement, watcher: Watcher, on_gone: Callable[[], None]) -> None:
        """Start the process. `on_gone` is called on the watcher's thread when it ends. Raises a ServerError."""
        self._plan = plan
        self._placement = placement
        self._log = ModelLog(plan.spec.name, placement.name)
        self._process = StubProcess(
            placement.name, plan.interpreter, plan.variables, plan.memory_bytes, watcher, self._log.printed, on_gone
        )
        self._channel = StubChannel(self._process.sock, self._process.memory, plan.spec, watcher, plan.outputs)
        self._channel.on_lost = on_gone
        self._metrics = plan.metrics.owner()
        asks = ModelAsks(self._channel, self._log, plan.models, self._metrics, plan.spec.name, placement)
        self._channel.answer(asks)
        self._readiness = ReadinessQuestion(self._process.readiness, placement.name)
        self._ending = threading.Lock()
        self._how: str | None = None

    def initialize(self) -> None:
        """Have the process import the model and initialize it. Blocks. Raises StubGone, BackendFailed."""
        self._start({})

    def complete(self) -> Any:
        """Have the process complete the configuration instead; it ends then. Raises StubGone, BackendFailed."""
        return self._start({"complete": self._plan.config})

    def try_start(self, limit_s: float, *, initialize: bool) -> None:
        """Have the process import the model only, and end, or also initialize it. Blocks for `limit_s` at most.

        Raises StubGone, BackendFailed.
        """
        self._start({} if initialize else {"only_import": "yes"}, limit_s)

    def _start(self, more: dict[str, str], limit_s: float | None = None) -> Any:
        began = time.monotonic()

        def still_starting() -> None:
            if limit_s is not None and time.monotonic() - began >= limit_s:
                raise BackendFailed(f"the model did not start within {limit_s:g} s")
            _log.info(
                "model instance '%s' is still initializing after %d s",
                self._placement.name,
                time.monotonic() - began,
                extra={"model": self._plan.spec.name},
            )

        order = {
            "args": self._plan.arguments(self._placement),
            "file": str(self._plan.file),
            "memory_limit": self._plan.limits.memory_bytes,
            **more,
        }
        every_s = _PROGRESS_EVERY_S if limit_s is None else min(_PROGRESS_EVERY_S, limit_s)
        return self._channel.start(order, still_starting, every_s)

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender],
        limit_s: float | None,
    ) -> Execution:
        """Raises StubGone."""
        outcomes = self._channel.execute(requests, batch_sizes, senders, limit_s)
        return Execution(outcomes, self._channel.sent_ns, monotonic_ns())

    @property
    def has_ended(self) -> bool:
        return self._process.wait(0)

    @property
    def id(self) -> int:
        return self._process.pid

    @property
    def resident_bytes(self) -> int:
        """The memory of the process without what it shares with the server; 0 if it has ended."""
        try:
            fields = Path(f"/proc/{self._process.pid}/statm").read_text().split()
            return (int(fields[1]) - int(fields[2])) * _PAGE
        except (OSError, ValueError, IndexError):
            return 0

    def check_ready(self) -> None:
        """Ask the model whether it is ready. Blocks. Raises ModelNotReady with the reason."""
        self._readiness.ask()

    def stop(self, within_s: float) -> None:
        """Let the model finalize, and end the process, after `within_s` seconds at the latest. Blocks."""
        if within_s:
            self._channel.stop()
            if not self._process.wait(within_s):
                _log.warning(
                    "model instance '%s' did not finalize within %g s and is killed", self._placement.name, within_s
                )
        self.end()

    def end(
        self, failure: Callable[[str], ServerError] | None = None, reason: str = "", *, is_ending: bool = False
    ) -> str:
        """Kill the process and its children if they still run, and answer what is open with `failure(how)`.

        `reason` is why it is killed; `is_ending`: it is about to end by itself. Returns how the process ended, with its
        last lines; so does a later call.
        """
        with self._ending:
            if self._how is None:
                how = self._process.end(is_ending)
                lines = "\\n".join(self._process.last_lines)
                self._how = (how or f"was killed because {reason or 'it is not needed'}") + (
                    f"; its last lines were: {lines}" if lines else ""
                )
                error = failure(self._how) if failure is not None else BackendFailed("the model is unloaded")
                self._channel.lose(error)
                self._metrics.close()
            return self._how
