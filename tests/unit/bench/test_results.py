"""The figures of a run: ratios and means, and the publication, which a run that shared its cores does not get."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import pytest

from bench import results
from bench.machine import LoadWatch, MachineLoad
from bench.results import (
    CROWDED,
    Comparison,
    Publication,
    Ratio,
    Turn,
    add_publication_arguments,
    machine_sentence,
)

QUIET = MachineLoad(others=0.02, stolen=0.0, load_average=0.3)
BUSY = MachineLoad(others=0.4, stolen=0.0, load_average=3.0)


class Watch(LoadWatch):
    """Sees what it was told."""

    def __init__(self, during: MachineLoad) -> None:
        self.during = during

    def load(self) -> MachineLoad:
        return self.during


def written(folder: Path, before: MachineLoad, during: MachineLoad, *arguments: str) -> Path:
    parser = argparse.ArgumentParser()
    add_publication_arguments(parser)
    options = parser.parse_args([f"--results={folder}", *arguments])
    run = Publication(options, look=lambda: before, watch=lambda: Watch(during))
    return run.write("-part", "{}", "text", run.load())


@pytest.fixture(autouse=True)
def unpublished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "UNPUBLISHED", tmp_path / "unpublished")
    return tmp_path / "unpublished"


def test_a_quiet_run_is_published(tmp_path: Path) -> None:
    page = written(tmp_path / "results", QUIET, QUIET, "--crowded")
    assert page.parent == tmp_path / "results"
    assert page.read_text() == "text"
    assert page.with_suffix(".json").read_text() == "{}"
    assert page.name.endswith("-part.md")
    assert CROWDED not in machine_sentence(QUIET)


def test_a_crowded_run_does_not_begin_or_is_not_published_unless_it_is_marked(
    tmp_path: Path, unpublished: Path
) -> None:
    with pytest.raises(SystemExit, match=r"other processes took 40% .* --crowded"):
        written(tmp_path / "results", BUSY, QUIET)
    page = written(tmp_path / "results", QUIET, BUSY)
    assert page.parent == unpublished
    assert not (tmp_path / "results").exists()
    page = written(tmp_path / "results", BUSY, BUSY, "--crowded")
    assert page.parent == tmp_path / "results"
    assert page.name.endswith("-crowded.md")
    assert CROWDED in machine_sentence(BUSY)


def test_the_ratio_is_the_median_of_the_pairs_ratios() -> None:
    assert Ratio.of([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]).median == 3.0
    with pytest.raises(ValueError, match="shorter"):
        Ratio.of([1.0, 2.0], [1.0])


def test_the_interval_narrows_as_pairs_are_added() -> None:
    noise = random.Random(1)
    few, many = ([noise.uniform(0.8, 1.2) for _ in range(count)] for count in (10, 1000))
    narrow, wide = (Ratio.of(values, [1.0] * len(values)) for values in (many, few))
    assert narrow.high - narrow.low < (wide.high - wide.low) / 3
    assert narrow.low < 1.0 < narrow.high


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_interval_of_a_few_pairs_is_all_of_them(count: int) -> None:
    values = [1.0, 2.0, 3.0][:count]
    ratio = Ratio.of(values, [1.0] * count)
    assert (ratio.low, ratio.high) == (values[0], values[-1])


def test_a_comparison_has_a_row_for_each_load_over_the_last_one() -> None:
    pairs = [{"this": Turn(100.0 * n, 40.0 / n), "other": Turn(100.0, 80.0 / n)} for n in (2, 3, 4)]
    comparison = Comparison("add/sub", 1, pairs, errors=0)
    assert comparison.cells() == [
        ["add/sub", "1", "this", "300", "3.000 [2.000, 4.000]", "13.3", "0.500 [0.500, 0.500]", "0"],
        ["add/sub", "1", "other", "100", "", "26.7", "", "0"],
    ]
    assert comparison.extra_us("this") == pytest.approx(1e6 / 300 - 1e4)
