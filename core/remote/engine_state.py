"""The state of the engine that it sends to every front end, which answers health probes from it without a call."""

from __future__ import annotations

from dataclasses import dataclass

from core.lifecycle.serving_phase import Phase, ServingPhase
from core.observability.logging import LogLevels


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """`generation` changes whenever another set of model versions serves. `log` is None if nothing is known
    of it. `is_tracing` and `reads_trace_context` are the flags of TraceGate.
    """

    live: bool
    ready: bool
    generation: int
    phase: ServingPhase
    log: LogLevels | None = None
    is_tracing: bool = False
    reads_trace_context: bool = False


def engine_down(reason: str) -> EngineState:
    """The state without an engine: live, because it is being restarted, but not ready."""
    phase = ServingPhase(name=Phase.ENGINE_DOWN, failures={"engine": reason})
    return EngineState(live=True, ready=False, generation=-1, phase=phase)
