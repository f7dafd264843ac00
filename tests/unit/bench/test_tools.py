"""The tools of bench: the figures of a run and their publication, which a run that shared its cores does not get; whose
CPU time it was; the simulation of replicas; and the pieces of what a lent machine needs."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import results
from bench.clients import Load
from bench.gpu import Damaged, join, split
from bench.guard import LIMIT, OTHER, ROWS, THIS, Measured, Row, Verdict, all_ports, checked_out, find, opened, parse
from bench.machine import LoadWatch, MachineLoad, tree_members, tree_seconds
from bench.results import CROWDED, Comparison, Program, Publication, Ratio, Turn, machine_sentence
from bench.runner import NotServed
from bench.scale import Autoscaler, Rule, arrivals, simulate
from bench.servers.server import Server, trident
from tests.project import ROOT

QUIET = MachineLoad(others=0.02, stolen=0.0, load_average=0.3)
BUSY = MachineLoad(others=0.4, stolen=0.0, load_average=3.0)


class Watch(LoadWatch):
    """Returns the given readings."""

    def __init__(self, during: MachineLoad) -> None:
        self.during = during

    def load(self) -> MachineLoad:
        return self.during


def written(folder: Path, before: MachineLoad, during: MachineLoad, *arguments: str) -> Path:
    options = Program("part", None).parse_args([f"--results={folder}", *arguments])
    run = Publication(options, look=lambda: before, watch=lambda: Watch(during))
    return run.write("-part", "{}", "text", run.load())


@pytest.fixture(autouse=True)
def unpublished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "UNPUBLISHED", tmp_path / "unpublished")
    return tmp_path / "unpublished"


def test_run_on_a_quiet_machine_is_published(tmp_path: Path) -> None:
    page = written(tmp_path / "results", QUIET, QUIET, "--crowded")
    assert page.parent == tmp_path / "results"
    assert page.read_text() == "text"
    assert page.with_suffix(".json").read_text() == "{}"
    assert page.name.endswith("-part.md")
    assert CROWDED not in machine_sentence(QUIET)


def test_run_on_a_busy_machine_is_refused_unless_marked(tmp_path: Path, unpublished: Path) -> None:
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


def test_comparison_has_a_row_for_each_load_above_the_last() -> None:
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
    ("others", "stolen", "crowded"), [(0.0, 0.0, False), (0.09, 0.04, False), (0.11, 0.0, True), (0.0, 0.06, True)]
)
def test_machine_is_busy_above_either_limit(others: float, stolen: float, crowded: bool) -> None:
    assert MachineLoad(others, stolen, load_average=9.0).crowded is crowded


def test_cpu_seconds_include_ended_and_running_children() -> None:
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


def test_autoscaler_respects_limits_and_shrinks_slowly_after_quiet_minutes() -> None:
    for count, ratio, expected in ((2, 1.05, 2), (2, 2.4, 5), (2, 100, 6), (6, 2, 10)):
        assert Autoscaler(2).replicas(0.0, count, ratio) == expected
    scaler = Autoscaler(2)
    counts = [scaler.replicas(0.0, 4, 2)]
    for poll in range(1, 30):
        counts.append(scaler.replicas(poll * 15.0, counts[-1], 0))
    assert counts[:20] == [8] * 20
    assert counts[20:29:4] == [7, 6, 5]


# --- files split for a rented machine are joined again, and damage is detected

CONTENTS = {"a.whl": b"a" * 25, "empty": b"", "b.whl": bytes(range(256)), "c": b"c"}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    return [tmp_path / name for name in CONTENTS]


@pytest.mark.parametrize(("piece_bytes", "pieces"), [(1, 282), (10, 29), (141, 2), (1000, 1)])
def test_split_files_are_joined_unchanged(files: list[Path], tmp_path: Path, piece_bytes: int, pieces: int) -> None:
    packed = tmp_path / "packed"
    assert split(files, packed, piece_bytes) == pieces
    sizes = [piece.stat().st_size for piece in sorted(packed.glob("piece-*"))]
    assert (len(sizes), max(sizes), sum(sizes)) == (pieces, min(piece_bytes, 282), 282)
    joined = join(packed, tmp_path / "joined")
    assert {file.name: file.read_bytes() for file in joined} == CONTENTS


def test_damaged_piece_is_detected(files: list[Path], tmp_path: Path) -> None:
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


# --- the guard: the compared commit, its server, and the verdict of a row's pairs. Real git repositories


def _git(folder: Path, *arguments: str) -> str:
    settings = ("user.name=A", "user.email=a@example.com", "commit.gpgsign=false", "tag.gpgsign=false")
    given = [word for setting in settings for word in ("-c", setting)]
    done = subprocess.run(["git", *given, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Three commits, `one`, `two` and `three`, without a tag; each wrote its name to the file `content`."""
    folder = tmp_path / "project"
    folder.mkdir()
    _git(folder, "init", "--quiet")
    for name in ("one", "two", "three"):
        (folder / "content").write_text(name)
        _git(folder, "add", "content")
        _git(folder, "commit", "--quiet", "--message", name)
    return folder


@pytest.mark.parametrize(
    ("tags", "named", "subject", "why"),
    [
        ({"v1.0.0": "HEAD~2", "v1.1.0": "HEAD~1", "nightly": "HEAD~1"}, "", "two", "the last release, v1.1.0"),
        # A release is not compared with itself.
        ({"v1.0.0": "HEAD~2", "v2.0.0": "HEAD"}, "", "one", "the last release, v1.0.0"),
        ({}, "", "two", "the baseline, because no tag v*"),
        ({"v1.0.0": "HEAD~1"}, "HEAD~2", "one", ""),
    ],
)
def test_the_commit_is_a_named_one_or_the_newest_release_before_head(
    checkout: Path, tags: dict[str, str], named: str, subject: str, why: str
) -> None:
    for tag, commit in tags.items():
        _git(checkout, "tag", tag, commit)
    found = find(checkout, named, baseline="HEAD~1")
    assert found.subject == subject
    assert why in str(found)


def test_missing_commit_is_refused_with_a_hint(checkout: Path) -> None:
    for name in ("nothing", "--version"):
        with pytest.raises(SystemExit, match=f"no commit {name}.*--against"):
            find(checkout, name)
    _git(checkout, "checkout", "--quiet", "HEAD~2")
    with pytest.raises(SystemExit, match="fetch more history"):
        find(checkout)


def test_checkout_has_the_files_of_the_commit_and_is_removed(checkout: Path) -> None:
    (checkout / "content").write_text("not committed")
    with pytest.raises(KeyError), checked_out(checkout, find(checkout, "HEAD~1")) as folder:  # noqa: PT012
        assert (folder / "content").read_text() == "two"
        # What the servers leave there is removed too.
        (folder / "left").write_text("bytecode")
        raise KeyError
    assert not folder.parent.exists()
    assert _git(checkout, "worktree", "list").count("\n") == 0
    assert (checkout / "content").read_text() == "not committed"


@pytest.mark.slow
def test_every_entry_point_has_a_port() -> None:
    command = all_ports(ROOT, Path("models"), Path("log")).command
    for option in ("--http-port", "--grpc-port", "--sagemaker-port", "--vertex-ai-port", "--cache-config"):
        assert any(part.startswith(f"{option}=") for part in command), option
    assert "--allow-client-shm=true" in command


def test_options_unknown_to_an_older_checkout_are_omitted(tmp_path: Path) -> None:
    app = tmp_path / "older" / "trident" / "app"
    for package in (app, app.parent / "core", app.parent / "adapters"):
        package.mkdir(parents=True)
    (app / "__main__.py").write_text("print('  --http-port=<string>\\n  --model-repository=<string>')")
    command = all_ports(tmp_path / "older", tmp_path, tmp_path / "log").command
    assert command[1:4] == ["-m", "trident.app", "serve"]
    options = command[4:]
    assert [option.partition("=")[0] for option in options] == ["--model-repository", "--http-port"]


def test_folder_is_compared_in_place_and_rows_are_named_by_their_keys(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "other" / "trident").mkdir(parents=True)
    with checked_out(checkout, find(checkout, str(tmp_path / "other"))) as folder:
        assert folder == tmp_path / "other"
    assert parse(["--only", "cache,sequences"]).only == ["cache", "sequences"]
    assert parse([]).only == [row.key for row in ROWS]
    with pytest.raises(SystemExit):
        parse(["--only", "cache hit"])


@pytest.fixture(scope="module")
def servers() -> dict[str, Server]:
    """Not started."""
    return {name: trident(Path(name), Path(f"{name}.log")) for name in (THIS, OTHER)}


def _row(servers: dict[str, Server], *served: str) -> Row:
    """A row that only these servers serve."""

    @contextmanager
    def opened(server: Server) -> Iterator[Load]:
        if server not in [servers[name] for name in served]:
            raise NotServed("404: unknown model")
        yield Load(server, "simple", server.url("/"))

    return Row("key", "a row", opened)


def _measured(servers: dict[str, Server], ours: float) -> Measured:
    with opened([_row(servers, THIS, OTHER)], servers) as (row,):
        row.pairs = [{THIS: Turn(ours, 1.0), OTHER: Turn(1000.0, 1.0)}] * 20
    return row


def test_guard_row_is_the_ratio_of_rates(servers: dict[str, Server]) -> None:
    row = _measured(servers, ours=500.0)
    assert row.verdict is Verdict.SLOWER
    assert row.cells() == ["a row", "0.500 [0.500, 0.500]", "1.000 [1.000, 1.000]", "20", "**slower**"]
    assert _measured(servers, ours=2000.0).verdict is Verdict.OK


def test_guard_row_missing_in_the_other_checkout_is_new(
    servers: dict[str, Server], capsys: pytest.CaptureFixture[str]
) -> None:
    with opened([_row(servers, THIS)], servers) as (row,):
        assert row.verdict is Verdict.NEW
        assert row.cells() == ["a row", "", "", "0", "new"]
    assert "404: unknown model" in capsys.readouterr().err


def test_guard_row_missing_in_this_checkout_fails(servers: dict[str, Server]) -> None:
    with (
        pytest.raises(SystemExit, match="a row: this checkout does not serve it: 404"),
        opened([_row(servers, OTHER)], servers),
    ):
        pass


NOISE = 0.08
ENOUGH = 60


def _pairs(true_ratio: float, count: int, seed: int) -> Ratio:
    """Turns on a machine on which one turn differs from the next by 8 %, and some are disturbed much more."""
    noise = random.Random(seed)

    def rate(middle: float) -> float:
        return middle * noise.gauss(1, NOISE) * (0.5 if noise.random() < 0.03 else 1)

    return Ratio.of([rate(true_ratio) for _ in range(count)], [rate(1.0) for _ in range(count)])


@pytest.mark.parametrize(
    ("low", "median", "high", "verdict"),
    [
        (0.90, 0.92, LIMIT - 0.001, Verdict.SLOWER),
        (0.90, 0.92, LIMIT, Verdict.UNSURE),
        (LIMIT - 0.001, 1.00, 1.05, Verdict.UNSURE),
        (LIMIT, 0.96, 0.97, Verdict.OK),
        (1.10, 1.20, 1.30, Verdict.OK),
    ],
)
def test_only_an_interval_below_the_limit_counts_as_slower(
    low: float, median: float, high: float, verdict: Verdict
) -> None:
    assert Verdict.of(Ratio(median, low, high)) is verdict
    # One slower figure of two is enough.
    assert Verdict.of(Ratio(1.0, 0.98, 1.02), Ratio(0.9, 0.88, 0.92)) is Verdict.SLOWER


def test_noise_does_not_count_as_slower() -> None:
    verdicts = [Verdict.of(_pairs(1.0, ENOUGH, seed)) for seed in range(200)]
    assert Verdict.SLOWER not in verdicts
    assert verdicts.count(Verdict.OK) > 100
    verdicts = [Verdict.of(_pairs(0.88, ENOUGH, seed)) for seed in range(200)]
    assert verdicts.count(Verdict.SLOWER) > 190
    assert Verdict.OK not in verdicts
    verdicts = [Verdict.of(_pairs(LIMIT, ENOUGH, seed)) for seed in range(400)]
    assert verdicts.count(Verdict.SLOWER) < 0.04 * len(verdicts)
