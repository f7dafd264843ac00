"""What every front end knows of the engine without asking: it answers health from this, whatever the engine does."""

from __future__ import annotations

from dataclasses import dataclass

from core.lifecycle.serving_phase import Phase, ServingPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """`generation` changes with every change of the versions that serve."""

    live: bool
    ready: bool
    generation: int
    phase: ServingPhase


def engine_down(reason: str) -> EngineState:
    """Without an engine the server lives, as it is being started again, and is not ready."""
    phase = ServingPhase(name=Phase.ENGINE_DOWN, failures={"engine": reason})
    return EngineState(live=True, ready=False, generation=-1, phase=phase)
