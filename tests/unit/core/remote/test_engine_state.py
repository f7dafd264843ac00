"""The state that the engine sends to every front end."""

from __future__ import annotations

from trident.core.lifecycle.state import DownloadPhase, Phase, ServingPhase
from trident.core.remote.calls import from_plain, read_plain, to_plain, write_plain
from trident.core.remote.engine_server import EngineState, engine_down


def test_a_server_without_an_engine_is_live_and_not_ready() -> None:
    state = engine_down("it has ended")
    assert (state.live, state.ready) == (True, False)
    assert (state.phase.name, state.phase.failures) == (Phase.ENGINE_DOWN, {"engine": "it has ended"})


def test_a_state_survives_the_way() -> None:
    download = DownloadPhase(bytes_done=1, bytes_total=2**40, objects_done=0, objects_total=3, seconds=0.5)
    phase = ServingPhase(
        name=Phase.LOADING, model="m", done=1, total=2, failures={"bad": "no \udcff file"}, download=download
    )
    state = EngineState(live=True, ready=False, generation=7, phase=phase)
    assert from_plain(read_plain(write_plain(to_plain(state))), EngineState) == state
