"""Ensembles and the models of their steps: loaded together, reloaded, unloaded and back again."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from tests.unit.core.lifecycle.lifecycle_bench import BROKEN, CONFIG, LIMIT_S, Bench, living, put, weight_of, write
from tests.waiting import until
from trident.core.errors import ServerError
from trident.core.lifecycle.state import Phase

explicit = partial(living, control_mode="explicit")
TENSOR = "data_type: TYPE_INT32 dims: [ 1 ]"


def step(model: str, source: str, result: str, version: int = -1) -> str:
    return (
        f'step {{ model_name: "{model}" model_version: {version} input_map {{ key: "INPUT0" value: "{source}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{result}" }} }}'
    )


def ensemble(repository: Path, name: str, *steps: str, config: str = "") -> None:
    """An ensemble from INPUT0 to OUTPUT0 with an empty version folder."""
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    put(
        repository / name / "config.pbtxt",
        f'platform: "ensemble" input {{ name: "INPUT0" {TENSOR} }} output {{ name: "OUTPUT0" {TENSOR} }} {config} '
        f"ensemble_scheduling {{ {' '.join(steps)} }}",
    )


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """A repository with `e`, which runs `a` and then `b`; the answer is the weight of `b`."""
    write(tmp_path, "a", 1)
    write(tmp_path, "b", 2)
    ensemble(tmp_path, "e", step("a", "INPUT0", "T"), step("b", "T", "OUTPUT0"))
    return tmp_path


def failure(bench: Bench, name: str) -> str:
    with pytest.raises(ServerError) as caught:
        bench.load(name)
    return caught.value.message


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_an_ensemble_is_loaded_with_all_models(chain: Path, mode: str) -> None:
    ensemble(chain, "0_outer", step("e", "INPUT0", "T"), step("a", "T", "OUTPUT0"))
    with living(chain, control_mode=mode) as bench:
        assert bench.engine.is_ready()
        assert bench.index() == ["0_outer 1 READY", "a 1 READY", "b 1 READY", "e 1 READY"]
        assert sorted(bench.backend.loads) == ["a:1=1", "b:1=2"], "each step is loaded once"
        assert bench.ask("e") == 2
        assert bench.ask("0_outer") == 1


@pytest.mark.parametrize(
    ("weights", "config", "reason"),
    [
        ((), "", "ensemble e contains models that are not available or ambiguous: b"),
        (
            (BROKEN,),
            CONFIG,
            "ensemble 'e' depends on 'b' which has no loaded version. Model 'b' loading failed with error: "
            "Internal: the weights are broken",
        ),
        (
            (2,),
            CONFIG + "max_batch_size: -1",
            "ensemble 'e' depends on 'b' which is not valid. Model 'b' failed with error: "
            "Invalid argument: 'max_batch_size' must be non-negative value for b",
        ),
    ],
)
def test_an_ensemble_fails_with_its_step(
    tmp_path: Path, weights: tuple[int | str, ...], config: str, reason: str
) -> None:
    write(tmp_path, "a", 1)
    if weights:
        write(tmp_path, "b", *weights, config=config)
    ensemble(tmp_path, "e", step("a", "INPUT0", "T"), step("b", "T", "OUTPUT0"))
    with living(tmp_path) as bench:
        assert bench.engine.phase().name is Phase.FAILED
        assert f"e 1 UNAVAILABLE Invalid argument: {reason}" in bench.index()
        assert len([load for load in bench.backend.loads if load.startswith("b")]) <= 1, "it is not tried twice"
    with explicit(tmp_path) as bench:
        assert failure(bench, "e") == f"load failed for model 'e': {reason}\n"
        assert bench.ask("a") == 1


def test_every_problem_of_the_steps_is_reported_at_once(chain: Path) -> None:
    ensemble(
        chain,
        "e",
        step("a", "INPUT0", "T", version=7),
        step("none", "T", "U"),
        step("b", "U", "OUTPUT0", version=3),
    )
    with explicit(chain) as bench:
        assert failure(bench, "e") == (
            "load failed for model 'e': ensemble e contains models that are not available or ambiguous: none; "
            "ensemble 'e' depends on 'a' whose required version 7 is not loaded.; "
            "ensemble 'e' depends on 'b' whose required version 3 is not loaded.\n"
        )


@pytest.mark.parametrize("mode", ["none", "explicit"])
def test_ensembles_cannot_run_in_a_circle(tmp_path: Path, mode: str) -> None:
    ensemble(tmp_path, "e", step("f", "INPUT0", "OUTPUT0"))
    ensemble(tmp_path, "f", step("g", "INPUT0", "OUTPUT0"))
    ensemble(tmp_path, "g", step("e", "INPUT0", "OUTPUT0"))
    with living(tmp_path, control_mode=mode, load_models=("e",) if mode == "explicit" else ()) as bench:
        circle = "Invalid argument: circular dependency between ensembles: "
        assert f"e 1 UNAVAILABLE {circle}e -> f -> g -> e" in bench.index()


def test_golden_requests_run_before_the_ensemble_serves(chain: Path) -> None:
    golden = (
        '{"request": {"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [7]}]}, '
        '"response": {"outputs": [{"name": "OUTPUT0", "shape": [1], "datatype": "INT32", "data": [WEIGHT]}]}}'
    )
    put(chain / "e" / "golden" / "g.json", golden.replace("WEIGHT", "2"))
    with explicit(chain, load_models=("e",)) as bench:
        assert bench.index() == ["a 1 READY", "b 1 READY", "e 1 READY"]
        put(chain / "e" / "golden" / "g.json", golden.replace("WEIGHT", "3"))
        assert "output 'OUTPUT0' at [0] is 2, expected 3" in failure(bench, "e")
        assert bench.ask("e") == 2


def test_ensemble_loading_with_its_step_uses_the_reloaded_step(chain: Path) -> None:
    """The load of the step has ended, so its ensemble must not answer with the old version until another load ends."""
    with explicit(chain, load_models=("e",)) as bench:
        put(chain / "a" / "1" / "model.fake", "10")
        with bench.backend.holding("a"):
            loading = threading.Thread(target=bench.load, args=("e",))
            loading.start()
            until(lambda: "a:1=10" in bench.backend.loads)
            put(chain / "b" / "1" / "model.fake", "20")
            bench.load("b")
            assert bench.ask("e") == 20
        loading.join(LIMIT_S)
        assert bench.ask("e") == 20


def test_a_request_ends_on_the_versions_on_which_it_began(chain: Path) -> None:
    with explicit(chain, load_models=("e",)) as bench:
        a = next(model for model in bench.backend.models if model.weight == 1)
        a.gate.clear()
        responses = bench.submit("e")
        assert a.begun.acquire(timeout=LIMIT_S)
        old = bench.version("b")
        put(chain / "b" / "1" / "model.fake", "20")
        bench.load("b")
        assert not old.gone.is_set()
        a.gate.set()
        assert weight_of(responses) == 2
        assert old.gone.wait(LIMIT_S)
        assert bench.ask("e") == 20


def test_incompatible_new_step_does_not_unload_the_ensemble(chain: Path) -> None:
    with explicit(chain, load_models=("e",)) as bench:
        put(chain / "b" / "config.pbtxt", CONFIG.replace("OUTPUT0", "OTHER"))
        bench.load("b")
        text = "Invalid argument: in ensemble e, ensemble tensor OUTPUT0 is mapped from non-existing output OUTPUT0"
        assert f"e 1 READY {text} in model b" in bench.index()
        assert bench.ask("e") == 2, "by the version of the step that it holds"
        put(chain / "b" / "config.pbtxt", CONFIG)
        bench.load("b")
        assert bench.index() == ["a 1 READY", "b 1 READY", "e 1 READY"]


def test_unload_dependents_unloads_unused_steps(chain: Path) -> None:
    write(chain, "c", 3)
    ensemble(chain, "outer", step("e", "INPUT0", "T"), step("c", "T", "OUTPUT0"))
    ensemble(chain, "other", step("c", "INPUT0", "OUTPUT0"))
    with explicit(chain, load_models=("outer", "other", "a")) as bench:
        bench.engine.unload_model("outer", True)
        bench.until_index(
            "a 1 READY",
            "b 1 UNAVAILABLE unloaded",
            "c 1 READY",
            "e 1 UNAVAILABLE unloaded",
            "other 1 READY",
            "outer 1 UNAVAILABLE unloaded",
        )


def test_polling_reloads_ensembles_with_their_steps(chain: Path) -> None:
    with living(chain, control_mode="poll") as bench:
        put(chain / "b" / "1" / "model.fake", "20")
        bench.poll()
        assert bench.ask("e") == 20
        (chain / "b").rename(chain.parent / "away")
        bench.poll()
        reason = "Invalid argument: ensemble 'e' depends on 'b' which has no loaded version."
        bench.until_index("a 1 READY", f"e 1 UNAVAILABLE {reason}")
        (chain.parent / "away").rename(chain / "b")
        bench.poll()
        bench.until_index("a 1 READY", "b 1 READY", "e 1 READY")
        assert bench.ask("e") == 20


def test_a_step_that_comes_later_completes_the_ensemble(chain: Path) -> None:
    (chain / "b").rename(chain.parent / "away")
    with living(chain, control_mode="poll") as bench:
        assert not bench.engine.is_ready()
        (chain.parent / "away").rename(chain / "b")
        bench.poll()
        bench.until_index("a 1 READY", "b 1 READY", "e 1 READY")
        assert bench.engine.is_ready()


def archive(folder: Path, weight: int | str) -> Path:
    """An ensemble with the model of its step beside it. Returns the ensemble's folder."""
    write(folder, "a", weight)
    ensemble(folder, "inner", step("a", "INPUT0", "OUTPUT0"))
    ensemble(folder, "e", step("inner", "INPUT0", "OUTPUT0"))
    return folder / "e"


def test_an_ensemble_outside_the_repositories_brings_its_own_models(tmp_path: Path) -> None:
    """Models of two archives may have the same names."""
    with living(control_mode="demand") as bench:
        for name, weight in (("cat", 1), ("dog", 2)):
            bench.engine.load_directory(name, str(archive(tmp_path / name, weight)), name)
        assert (bench.ask("cat"), bench.ask("dog")) == (1, 2)
        with pytest.raises(ServerError, match="Request for unknown model"):
            bench.engine.model("a")
        bench.engine.unload_model("cat", True, wait=True)
        assert [model.is_closed for model in bench.backend.models] == [True, False]
        assert bench.ask("dog") == 2
        bench.engine.load_directory("cat", str(tmp_path / "cat" / "e"), "cat")
        assert bench.ask("cat") == 1


def test_archive_with_a_failing_step_is_removed_completely(tmp_path: Path) -> None:
    archive(tmp_path / "cat", 1)
    write(tmp_path / "cat", "b", BROKEN)
    ensemble(tmp_path / "cat", "e", step("inner", "INPUT0", "T"), step("b", "T", "OUTPUT0"))
    with living(control_mode="demand") as bench:
        with pytest.raises(ServerError, match=r"depends on 'b' which has no loaded version\."):
            bench.engine.load_directory("cat", str(tmp_path / "cat" / "e"), "cat")
        until(lambda: all(model.is_closed for model in bench.backend.models))
        assert bench.engine.is_ready()
