"""Models that are loaded when something asks for them, and let go when they rest."""

from __future__ import annotations

import queue
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.core.lifecycle.lifecycle_bench import (
    BROKEN,
    CONFIG,
    LIMIT_S,
    Bench,
    living,
    put,
    unstarted,
    weight_of,
    write,
)
from tests.waiting import until
from trident.core.errors import (
    DeadlineExceeded,
    ModelCold,
    ModelNotFound,
    ModelNotReady,
    OutOfMemory,
    ServerError,
    ServerStopping,
)
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.lifecycle.demand import Registration
from trident.core.lifecycle.lifecycle import LoadThreads
from trident.core.lifecycle.memory import MemoryLedger, ModelBudget
from trident.core.lifecycle.options import MemoryShare
from trident.core.observability.hardware import MemoryState
from trident.core.repository.sources import LocalSource, ModelKey

SIZE = 100
"""The bytes of a model's file, and so of the model."""
REGISTERED = "UNAVAILABLE REGISTERED: it is loaded when something asks for it"
SEQUENCES = CONFIG + "sequence_batching { max_sequence_idle_microseconds: 60000000 }"
JSON = """{"backend": "fake", "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [1]}],
"output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [1]}]}"""
ENSEMBLE = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling { step [
  { model_name: "a" model_version: -1
    input_map { key: "INPUT0" value: "IN" } output_map { key: "OUTPUT0" value: "MIDDLE" } },
  { model_name: "b" model_version: -1
    input_map { key: "INPUT0" value: "MIDDLE" } output_map { key: "OUTPUT0" value: "OUT" } } ] }
"""


def sized(weight: int, size: int = SIZE) -> str:
    return str(weight).ljust(size)


@contextmanager
def demanding(*repositories: Path, budget: int = 0, grown: Sequence[int] = (), **options: Any) -> Iterator[Bench]:
    """A server that loads on demand; with a `budget` its models may take so many bytes, which are those of their
    files and what requests have `grown` them by."""
    benches: list[Bench] = []

    def resident() -> int:
        return sum(SIZE for bench in benches for model in bench.backend.models if not model.is_closed) + sum(grown)

    share = ModelBudget(MemoryShare(bytes=budget), resident=resident, host=lambda: None)
    ledger = MemoryLedger(lambda devices: {}, {}, budget=share if budget else None)
    with unstarted(*repositories, memory=ledger, control_mode="demand", **options) as bench:
        benches.append(bench)
        bench.engine.start()
        assert bench.engine.wait_loaded(LIMIT_S)
        yield bench


def waiting(bench: Bench) -> int:
    """Requests that wait for a load."""
    found = bench.engine.metrics().demand
    assert found is not None
    return found.waiting


def resident(bench: Bench) -> list[str]:
    return [entry.name for entry in bench.engine.repository_index(ready_only=True)]


def test_models_are_registered_and_loaded_on_first_request(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b", "c", "d", "e"), start=1):
        write(tmp_path, name, number)
    with demanding(tmp_path, load_models=("e",)) as bench:
        assert bench.engine.is_ready()
        assert bench.backend.loads == ["e:1=5"]
        assert bench.index() == [f"{name} 1 {REGISTERED}" for name in "abcd"] + ["e 1 READY"]
        with pytest.raises(ModelCold, match=r"^model 'a' is REGISTERED: ") as caught:
            bench.engine.is_model_ready("a")
        assert caught.value.retry_after_s == 1
        assert bench.backend.loads == ["e:1=5"]
        assert bench.ask("a") == 1
        assert bench.engine.model_metadata("b").versions == (1,)
        assert bench.engine.model_config("c").parse().name == "c"
        bench.engine.prefetch_model("d")
        until(lambda: resident(bench) == ["a", "b", "c", "d", "e"])
        assert bench.engine.is_model_ready("a")
        with pytest.raises(ModelNotFound):
            bench.ask("nope")
        with pytest.raises(ModelNotFound, match="version 7 is not found"):
            bench.engine.model("a", 7)


def test_many_requests_for_a_cold_model_cause_one_load_and_keep_their_order(tmp_path: Path) -> None:
    write(tmp_path, "m", 7)
    write(tmp_path, "other", 8)
    with demanding(tmp_path) as bench:
        answers: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()

        def ask(number: int) -> None:
            answers.put((number, bench.ask("m")))

        with bench.backend.holding("m"):
            for number in range(10_000):
                with pytest.raises(ModelCold) as caught:
                    bench.lifecycle.models.find("m", -1)
                caught.value.await_load(partial(ask, number))
            assert waiting(bench) == 10_000
            assert bench.ask("other") == 8  # loads beside it
        assert [answers.get(timeout=LIMIT_S) for _ in range(10_000)] == [(number, 7) for number in range(10_000)]
        assert sorted(bench.backend.loads) == ["m:1=7", "other:1=8"]


def test_pause_after_failed_loads_grows_until_a_success(tmp_path: Path) -> None:
    registration = Registration(ModelKey("m"), LocalSource(tmp_path))
    for pause_s in (1, 2, 4, 8, 16, 32, 64, 64):
        before = time.monotonic()
        registration.note_failure()
        assert before + pause_s <= registration.retry_at <= time.monotonic() + pause_s
    registration.note_success(0.1)
    assert (registration.failures, registration.retry_at) == (0, 0.0)


def test_failed_load_fails_waiting_requests_and_is_retried_after_a_pause(tmp_path: Path) -> None:
    write(tmp_path, "m", BROKEN)
    with demanding(tmp_path) as bench:
        failures: queue.SimpleQueue[str] = queue.SimpleQueue()

        def ask() -> None:
            with pytest.raises(ModelNotReady) as caught:
                bench.ask("m")
            failures.put(f"{caught.value.message} {caught.value.retry_after_s}")

        with bench.backend.holding("m"):
            threads = [threading.Thread(target=ask) for _ in range(5)]
            for thread in threads:
                thread.start()
            until(lambda: waiting(bench) == 5)
        for thread in threads:
            thread.join()
        text = "model 'm' failed to load: version 1 is UNAVAILABLE: Internal: the weights are broken 1"
        assert [failures.get_nowait() for _ in threads] == [text] * 5
        assert bench.backend.loads == [f"m:1={BROKEN}"]
        put(tmp_path / "m" / "1" / "model.fake", "3")

        def answers() -> bool:
            try:
                return bench.ask("m") == 3
            except ModelNotReady:
                return False

        until(answers)
        assert bench.backend.loads == [f"m:1={BROKEN}", "m:1=3"]


def test_cancelled_caller_does_not_cancel_the_load(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with demanding(tmp_path) as bench:
        with bench.backend.holding("m"), pytest.raises(DeadlineExceeded, match="its load goes on"):
            bench.engine.model("m", timeout_s=0.01)
        assert bench.ask("m") == 1
        assert bench.backend.loads == ["m:1=1"]


def test_broken_configuration_affects_only_its_model(tmp_path: Path) -> None:
    write(tmp_path, "broken", 1, config="no configuration")
    write(tmp_path, "misplaced", 1, config=CONFIG + 'parameters { key: "IDLE_SECS" value { string_value: "soon" } }')
    write(tmp_path, "m", 2)
    with demanding(tmp_path) as bench:
        assert bench.engine.is_ready()
        assert bench.ask("m") == 2
        assert [line.partition(" ")[0] for line in bench.index() if "UNAVAILABLE" in line] == ["broken", "misplaced"]
        with pytest.raises(ModelNotReady, match="IDLE_SECS must be seconds from 0, got 'soon'"):
            bench.ask("misplaced")


def test_least_recently_used_model_is_unloaded_for_memory(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b", "c", "pinned", "stays"), start=1):
        write(tmp_path, name, sized(number))
    put(tmp_path / "stays" / "config.pbtxt", CONFIG + 'parameters { key: "PINNED" value { string_value: "true" } }')
    # Two beside those that stay, and what the load of one more takes for a while.
    with demanding(tmp_path, budget=5 * SIZE, load_models=("pinned",)) as bench:
        for name, weight in (("stays", 5), ("a", 1), ("b", 2)):
            assert bench.ask(name) == weight
        assert resident(bench) == ["a", "b", "pinned", "stays"]
        assert bench.ask("c") == 3
        assert "c" in resident(bench)
        assert {"pinned", "stays"} <= set(resident(bench))
        assert len(resident(bench)) == 4
        for name, weight in (("a", 1), ("b", 2), ("a", 1), ("c", 3)):
            assert bench.ask(name) == weight
        shown = bench.engine.demand_overview()
        assert shown is not None
        assert (shown.registered, shown.resident, shown.resident_bytes) == (5, len(resident(bench)), 4 * SIZE)
        gone = shown.let_go[0]
        assert (gone.bytes, gone.reason, gone.text) == (SIZE, "memory", "'c' needs its memory")
        starts = {each.model: (each.cold_starts, each.is_pinned, each.cold_seconds > 0) for each in shown.models}
        assert starts["pinned"] == (0, True, False)
        assert starts["stays"] == (1, True, True)
        assert starts["c"][0] + starts["a"][0] + starts["b"][0] == shown.loads - 1
        assert sum(not model.is_closed for model in bench.backend.models) <= 4


def test_model_in_use_is_not_evicted_and_oversized_load_is_refused(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b"), start=1):
        write(tmp_path, name, sized(number))
    write(tmp_path, "large", sized(3, 10 * SIZE))
    with demanding(tmp_path, budget=2 * SIZE) as bench:
        with pytest.raises(OutOfMemory, match="out of memory: model 'large' needs about") as caught:
            bench.ask("large")
        assert caught.value.retry_after_s == 1
        assert bench.ask("a") == 1
        with bench.running("a") as responses:
            waiting = threading.Thread(target=bench.ask, args=("b",))
            waiting.start()
            until(lambda: "b" in {model.key.name for model in bench.lifecycle.models.all() if model.is_busy})
            assert resident(bench) == ["a"]
        assert weight_of(responses) == 1
        waiting.join(LIMIT_S)
        assert resident(bench) == ["b"]
        bench.load("b")
        with pytest.raises(OutOfMemory, match=r"are free; held by b 0 MiB"):
            bench.ask("a")
        bench.engine.unload_model("b", False, wait=True)
        assert bench.index()[1] == f"b 1 {REGISTERED}"


def test_growth_beyond_the_budget_evicts_models_or_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, name in enumerate(("a", "b"), start=1):
        write(tmp_path, name, sized(number))
    grown = [0]
    with demanding(tmp_path, budget=4 * SIZE, grown=grown) as bench:
        assert bench.lifecycle.demand is not None
        assert (bench.ask("b"), bench.ask("a")) == (2, 1)
        with bench.running("a") as responses:
            grown[0] = 3 * SIZE
            bench.lifecycle.demand.look()
            until(lambda: len(bench.lifecycle.resident()) == 1)
            shown = bench.engine.demand_overview()
            assert shown is not None
            assert shown.let_go[0].text == "requests have made the models larger than the budget"
            grown[0] = 4 * SIZE
            for _ in range(2):
                bench.lifecycle.demand.look()
        assert weight_of(responses) == 1
        told = [record.getMessage() for record in caplog.records if "--model-memory" in record.getMessage()]
        assert [text for text in told if "held by a" in text] == told[:1]
        assert told[0].startswith(f"models take {SIZE} bytes more than")


def test_burst_during_an_eviction_loses_no_request(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b", "c"), start=1):
        write(tmp_path, name, sized(number))
    with demanding(tmp_path, budget=2 * SIZE) as bench:
        wrong: list[str] = []

        def burst(name: str, weight: int) -> None:
            for _ in range(30):
                answer = bench.ask(name)
                if answer != weight:
                    wrong.append(f"{name}: {answer}")

        threads = [threading.Thread(target=burst, args=(name, weight)) for weight, name in enumerate("abc", start=1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []


def test_request_to_a_just_unloaded_model_waits_for_its_reload(tmp_path: Path) -> None:
    write(tmp_path, "m", 4)
    with demanding(tmp_path) as bench:
        found = bench.engine.model("m")
        bench.engine.unload_model("m", False, wait=True)
        assert weight_of(bench.submit_to(found, "m")) == 4
        assert bench.backend.loads == ["m:1=4"] * 2


def test_idle_model_is_unloaded_and_reloaded(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    write(tmp_path, "keeps", 2, config=CONFIG + 'parameters { key: "IDLE_SECS" value { string_value: "0" } }')
    with demanding(tmp_path, model_idle_s=0.01) as bench:
        assert (bench.ask("m"), bench.ask("keeps")) == (1, 2)
        until(lambda: resident(bench) == ["keeps"])
        until(lambda: bench.index() == ["keeps 1 READY", f"m 1 {REGISTERED}"])
        assert bench.ask("m") == 1


def test_open_sequence_prevents_the_eviction(tmp_path: Path) -> None:
    write(tmp_path, "m", 1, config=SEQUENCES)
    with demanding(tmp_path, model_idle_s=0.001) as bench:

        def send(*, start: bool = False, end: bool = False) -> int:
            request = InferenceRequest("m", [InputTensor("INPUT0", "INT32", (1,), np.zeros(1, np.int32))])
            request.correlation_id, request.sequence_start, request.sequence_end = 5, start, end
            responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
            bench.engine.model("m").submit(PendingRequest(request, responses.put))
            return weight_of(responses)

        assert send(start=True) == 1
        assert bench.lifecycle.demand is not None
        for _ in range(3):
            bench.lifecycle.demand.look()
            assert resident(bench) == ["m"]
        assert send(end=True) == 1
        until(lambda: resident(bench) == [])
        assert bench.backend.loads == ["m:1=1"]


def test_ensemble_loads_and_unloads_its_steps(tmp_path: Path) -> None:
    for name, weight in (("a", 1), ("b", 2), ("c", 3)):
        write(tmp_path, name, sized(weight))
    put(tmp_path / "both" / "config.pbtxt", ENSEMBLE)
    (tmp_path / "both" / "1").mkdir()
    with demanding(tmp_path, budget=3 * SIZE) as bench:

        def ask_both() -> int:
            return bench.ask("both", InputTensor("IN", "INT32", (1,), np.zeros(1, np.int32)))

        assert ask_both() == 2
        assert resident(bench) == ["a", "b", "both"]
        assert bench.ask("c") == 3
        assert "both" not in resident(bench)
        assert ask_both() == 2
    with demanding(tmp_path) as bench, bench.backend.holding("a"), bench.backend.holding("b"):
        bench.engine.prefetch_model("both")
        until(lambda: sorted(load[0] for load in bench.backend.loads) == ["a", "b"])  # beside each other


def test_new_models_are_registered_and_removed_ones_unloaded(tmp_path: Path) -> None:
    write(tmp_path, "old", 1, 2)
    with demanding(tmp_path, poll_secs=0.01) as bench:
        assert bench.ask("old") == 2
        with bench.running("old") as responses:
            write(tmp_path, "new", 3)
            shutil.rmtree(tmp_path / "old")
            until(lambda: [line.partition(" ")[0] for line in bench.index()] != ["old"])
            assert bench.ask("new") == 3
            with pytest.raises(ModelNotFound):
                until(lambda: bench.ask("old") != 2)
        assert weight_of(responses) == 2


def test_load_request_pins_the_model_and_finds_new_names(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with demanding(tmp_path, model_idle_s=0.001) as bench:
        write(tmp_path, "new", 2)
        write(tmp_path, "broken", BROKEN)
        bench.load("new")
        with pytest.raises(ServerError):
            bench.load("broken")
        bench.load("m", JSON, {"1/model.fake": b"9"})
        for _ in range(3):
            assert bench.lifecycle.demand is not None
            bench.lifecycle.demand.look()
        assert (bench.ask("new"), bench.ask("m")) == (2, 9)
        assert bench.backend.loads == ["new:1=2", f"broken:1={BROKEN}", "m:1=9"]
        bench.engine.unload_model("m", False, wait=True)
        assert bench.ask("m") == 1  # what its repository has


def test_a_name_in_two_repositories_is_not_loaded_and_others_serve(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for repository in (one, two):
        write(repository, "same", 1)
    write(one, "m", 2)
    with demanding(one, two) as bench:
        assert bench.engine.is_ready()
        assert bench.ask("m") == 2
        with pytest.raises(ModelNotReady, match="model appears in two or more repositories"):
            bench.ask("same")


def test_all_versions_of_a_model_are_loaded_together(tmp_path: Path) -> None:
    write(tmp_path, "m", 1, 2, config=CONFIG + "version_policy { all { } }")
    with demanding(tmp_path) as bench:
        assert bench.index() == [f"m 1 {REGISTERED}", f"m 2 {REGISTERED}"]
        assert weight_of(bench.submit_to(bench.engine.model("m", 1), "m")) in (1, 2)
        assert bench.index() == ["m 1 READY", "m 2 READY"]


def test_waiting_requests_fail_at_the_exit(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    write(tmp_path, "n", 1)
    with demanding(tmp_path, load_threads=1) as bench:
        told: queue.SimpleQueue[type[Exception]] = queue.SimpleQueue()

        def ask(name: str) -> None:
            try:
                bench.ask(name)
            except Exception as error:
                told.put(type(error))

        with bench.backend.holding("m"):
            threads = [threading.Thread(target=ask, args=(name,)) for name in "mn"]
            for thread in threads:
                thread.start()
            until(lambda: bench.backend.loads == ["m:1=1"])
            until(lambda: waiting(bench) == 2)
            bench.engine.begin_exit()
            assert [told.get(timeout=LIMIT_S) for _ in threads] == [ServerStopping] * 2
        for thread in threads:
            thread.join()


def test_budget_is_a_size_a_share_or_the_free_memory_of_the_container() -> None:
    gib = 1 << 30
    resident, free = [gib], [4 * gib]
    for share, total in ((MemoryShare(bytes=gib), gib), (MemoryShare(part=0.5), 5 * gib), (MemoryShare(), 3.5 * gib)):
        resident[0], free[0] = gib, 4 * gib
        budget = ModelBudget(share, resident=lambda: resident[0], host=lambda: MemoryState(10 * gib, free[0]))
        resident[0] += gib // 2
        free[0] -= gib // 2
        budget.note_trim()
        found = budget.read()
        assert (found.total, found.used, found.free) == (total, gib // 2, total - gib // 2)
        budget.processes = lambda: [gib // 4]
        budget.note_trim()
        assert budget.read().used == 3 * gib // 4
        free[0] = gib  # another program took the rest
        assert budget.read().free == (gib // 2 if share == MemoryShare() else total - 3 * gib // 4)
        budget.settle()
        assert budget.read().used == 0


def test_small_models_do_not_wait_for_large_ones() -> None:
    threads = LoadThreads(2)
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    gate = threading.Event()
    for name in ("large", "larger"):
        threads.submit(lambda name=name: (gate.wait(LIMIT_S), done.put(name)), 1 << 40)  # type: ignore[misc]
    for name in ("small", "smaller"):
        threads.submit(lambda name=name: done.put(name), 10)  # type: ignore[misc]
    assert [done.get(timeout=LIMIT_S) for _ in range(2)] == ["small", "smaller"]
    gate.set()
    assert [done.get(timeout=LIMIT_S) for _ in range(2)] == ["large", "larger"]
    assert threads.wait_idle(LIMIT_S)


def test_load_without_waiting_requires_mode_demand(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with living(tmp_path) as bench, pytest.raises(Exception, match="needs --model-control-mode=demand"):
        bench.engine.prefetch_model("m")
