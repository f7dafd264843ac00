"""Model names in two repositories, names that are not text, and a model that triggers a bug."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.unit.core.lifecycle.lifecycle_bench import living, write
from trident.core.errors import InvalidRequest, ModelLoadFailed
from trident.core.repository.sources import Fetched, LocalSource, SourceFile

explicit = partial(living, control_mode="explicit")


def test_with_namespaces_models_of_one_name_coexist(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, "m", 1)
    write(second, "m", 2)
    write(second, "own", 3)
    with explicit(first, second, namespacing=True) as bench:
        bench.load("m")
        bench.load("own")
        assert sorted(bench.backend.loads) == ["m:1=1", "m:1=2", "own:1=3"]
        assert bench.index() == ["m 1 READY", "m 1 READY", "own 1 READY"]
        assert bench.ask("own") == 3
        with pytest.raises(InvalidRequest) as caught:
            bench.ask("m")
        assert caught.value.message == (
            "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity."
        )
        with pytest.raises(InvalidRequest, match=r"^Request for unknown model: 'none' is not found$"):
            bench.ask("none")
        bench.engine.unload_model("m", False)
        bench.until_index("m 1 UNAVAILABLE unloaded", "m 1 UNAVAILABLE unloaded", "own 1 READY")


def test_without_namespaces_a_name_that_is_not_unique_is_not_loaded(tmp_path: Path) -> None:
    for repository in ("first", "second"):
        write(tmp_path / repository, "m", 1)
    with explicit(tmp_path / "first", tmp_path / "second") as bench:
        with pytest.raises(ModelLoadFailed, match=r"^failed to load 'm', failed to poll from model repository$"):
            bench.load("m")
        assert bench.index() == ["m UNAVAILABLE model appears in two or more repositories"]
        assert bench.backend.loads == []


def test_directory_names_that_are_not_text_are_no_models(tmp_path: Path) -> None:
    os.makedirs(os.fsencode(tmp_path) + b"/caf\xe9/1")
    write(tmp_path, "ü.1 2", 1)
    with living(tmp_path) as bench:
        assert bench.index() == ["ü.1 2 1 READY"]
        assert bench.ask("ü.1 2") == 1


class Faulty(LocalSource):
    """A source with a bug that one model triggers."""

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        if model == "bad":
            raise KeyError("a bug")
        return super().fetch(model, files, version)


def test_a_bug_fails_one_model_and_not_the_start(tmp_path: Path) -> None:
    write(tmp_path, "bad", 1)
    write(tmp_path, "good", 1)
    with living(tmp_path, open_source=lambda text: Faulty(Path(text)), load_threads=1) as bench:
        assert bench.engine.phase().failures == {"bad": "Internal: 'a bug'"}
        assert bench.index() == ["bad UNAVAILABLE Internal: 'a bug'", "good 1 READY"]
        assert bench.ask("good") == 1
