from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.unit.core.lifecycle.lifecycle_bench import BROKEN, CONFIG, living, put, write
from trident.core.lifecycle.options import Readiness
from trident.core.lifecycle.state import Phase

polling = partial(living, control_mode="poll")
explicit = partial(living, control_mode="explicit")
TWO_VERSIONS = CONFIG + "version_policy { latest { num_versions: 2 } }"


@pytest.mark.parametrize(("readiness", "is_ready"), [(Readiness.SERVING, True), (Readiness.STRICT, False)])
def test_a_broken_push_leaves_the_server_ready_unless_the_rule_is_strict(
    readiness: Readiness, is_ready: bool, tmp_path: Path
) -> None:
    write(tmp_path, "m", 1, 2)
    with polling(tmp_path, readiness=readiness) as bench:
        assert bench.engine.is_ready()
        put(tmp_path / "m" / "3" / "model.fake", BROKEN)
        bench.poll()
        assert bench.ask("m") == 2
        assert bench.engine.is_ready() is is_ready
        reason = "Internal: the weights are broken"
        assert bench.index() == ["m 2 READY", f"m 3 UNAVAILABLE {reason}"]
        assert bench.engine.phase().failures == {"m": f"version 2 is READY; version 3 is UNAVAILABLE: {reason}"}
        put(tmp_path / "m" / "3" / "model.fake", "3")
        bench.poll()
        assert bench.ask("m") == 3
        assert bench.engine.is_ready()
        assert bench.engine.phase().failures == {}


def test_broken_files_in_the_place_of_a_serving_version_are_a_failure_of_a_ready_server(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with polling(tmp_path) as bench:
        put(tmp_path / "m" / "1" / "model.fake", BROKEN)
        bench.poll()
        assert bench.engine.is_ready()
        assert bench.engine.phase().failures == {"m": "version 1 is READY: Internal: the weights are broken"}


def test_a_failed_load_request_leaves_the_server_ready(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    write(tmp_path, "bad", BROKEN)
    with explicit(tmp_path, load_models=("m",)) as bench:
        for name in ("bad", "none"):
            with pytest.raises(Exception, match="failed"):
                bench.load(name)
        assert bench.engine.is_ready()
        bench.engine.unload_model("m", False)
        put(tmp_path / "m" / "1" / "model.fake", BROKEN)
        with pytest.raises(Exception, match="failed"):
            bench.load("m")
        assert bench.engine.is_ready()


@pytest.mark.parametrize(("config", "is_ready"), [(CONFIG, False), (TWO_VERSIONS, True)])
def test_an_older_version_serves_from_the_start_if_the_policy_selects_it(
    config: str, is_ready: bool, tmp_path: Path
) -> None:
    write(tmp_path, "m", 1, BROKEN, config=config)
    with polling(tmp_path) as bench:
        assert bench.engine.phase().name == Phase.FAILED
        assert bench.engine.is_ready() is is_ready
        if is_ready:
            assert bench.ask("m") == 1


def test_without_a_rule_the_models_do_not_matter(tmp_path: Path) -> None:
    write(tmp_path, "m", BROKEN)
    with polling(tmp_path, readiness=Readiness.STARTED) as bench:
        assert bench.engine.is_ready()
