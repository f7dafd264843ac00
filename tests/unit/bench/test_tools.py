"""The tools of bench: the figures of a run and their publication, which a run that shared its cores does not get; whose
CPU time it was; the simulation of replicas; and the pieces of what a lent machine needs."""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bench import results
from bench.gpu import Damaged, join, split
from bench.machine import LoadWatch, MachineLoad, tree_members, tree_seconds
from bench.results import (
    CROWDED,
    Comparison,
    Publication,
    Ratio,
    Turn,
    add_publication_arguments,
    machine_sentence,
)
from bench.scale import Autoscaler, Rule, arrivals, simulate

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
    two = Ratio.of([1.0, 2.0], [1.0, 1.0])  # few pairs: all of them
    assert (two.low, two.high) == (1.0, 2.0)


def test_a_comparison_has_a_row_for_each_load_over_the_last_one() -> None:
    pairs = [{"this": Turn(100.0 * n, 40.0 / n), "other": Turn(100.0, 80.0 / n)} for n in (2, 3, 4)]
    comparison = Comparison("add/sub", 1, pairs, errors=0)
    assert comparison.cells() == [
        ["add/sub", "1", "this", "300", "3.000 [2.000, 4.000]", "13.3", "0.500 [0.500, 0.500]", "0"],
        ["add/sub", "1", "other", "100", "", "26.7", "", "0"],
    ]
    assert comparison.extra_us("this") == pytest.approx(1e6 / 300 - 1e4)


# --- whose CPU time it was

BURN = "import time\nwhile time.process_time() < 0.3: pass"


@pytest.mark.parametrize(
    ("others", "stolen", "crowded"),
    [(0.0, 0.0, False), (0.09, 0.04, False), (0.11, 0.0, True), (0.0, 0.06, True)],
)
def test_a_machine_is_crowded_above_either_limit(others: float, stolen: float, crowded: bool) -> None:
    assert MachineLoad(others, stolen, load_average=9.0).crowded is crowded


def test_tree_seconds_include_children_that_have_ended_and_those_that_still_run() -> None:
    before = tree_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", BURN], check=True)
    between = tree_seconds(os.getpid())
    assert between - before >= 0.25  # of 0.3, counted in ticks of 10 ms by two clocks
    command = [sys.executable, "-c", f"{BURN}\nprint(flush=True)\ninput()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert tree_seconds(os.getpid()) - between >= 0.25
        assert tree_members(os.getpid()) >= {os.getpid(), child.pid}
        assert tree_members(child.pid) == {child.pid}  # and none of others
        child.communicate(b"\n")


# --- replicas: their queues and their autoscaler


def test_waits_are_those_of_queueing_theory() -> None:
    service_s, load = 0.01, 0.7
    times = list(arrivals(None, 400.0, peak=load / service_s))
    seen = simulate(Rule("one", None, 1), times, service_s, math.inf).durations
    # The mean wait of random arrivals for one server with a constant time of service.
    expected = load / (2 * (1 - load)) * service_s
    assert simulate(Rule("one", None, 1), [0.0] * 10, 1.0, 2.0).refused == 7  # those beyond the timeout
    assert sum(seen) / len(seen) - service_s == pytest.approx(expected, rel=0.1)


def test_autoscaler_grows_within_its_limits_and_removes_one_a_minute_after_five_quiet_minutes() -> None:
    for count, ratio, expected in ((2, 1.05, 2), (2, 2.4, 5), (2, 100, 6), (6, 2, 10)):
        assert Autoscaler(2).replicas(0.0, count, ratio) == expected
    scaler = Autoscaler(2)
    counts = [scaler.replicas(0.0, 4, 2)]
    for poll in range(1, 30):
        counts.append(scaler.replicas(poll * 15.0, counts[-1], 0))
    assert counts[:20] == [8] * 20
    assert counts[20:29:4] == [7, 6, 5]


# --- what was split for a lent machine is joined again, and damage is found

CONTENTS = {"a.whl": b"a" * 25, "empty": b"", "b.whl": bytes(range(256)), "c": b"c"}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    return [tmp_path / name for name in CONTENTS]


@pytest.mark.parametrize(("piece_bytes", "pieces"), [(1, 282), (10, 29), (141, 2), (1000, 1)])
def test_files_are_joined_as_they_were(files: list[Path], tmp_path: Path, piece_bytes: int, pieces: int) -> None:
    packed = tmp_path / "packed"
    assert split(files, packed, piece_bytes) == pieces
    sizes = [piece.stat().st_size for piece in sorted(packed.glob("piece-*"))]
    assert (len(sizes), max(sizes), sum(sizes)) == (pieces, min(piece_bytes, 282), 282)
    joined = join(packed, tmp_path / "joined")
    assert {file.name: file.read_bytes() for file in joined} == CONTENTS


def test_damage_is_found(files: list[Path], tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    split(files, packed, 100)
    piece = packed / "piece-001"
    content = piece.read_bytes()
    for damaged in (content[:-1], b"?" + content[1:]):
        piece.write_bytes(damaged)
        with pytest.raises(Damaged, match=r"b\.whl is not what was packed"):
            join(packed, tmp_path / "joined")
    piece.unlink()
    with pytest.raises(Damaged, match="lacks piece-001"):
        join(packed, tmp_path / "joined")
