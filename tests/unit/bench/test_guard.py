"""The guard: which commit is compared, its server, and what the pairs of a row decide. Real git repositories."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.clients import Load
from bench.guard import LIMIT, OTHER, THIS, Measured, Row, Verdict, all_ports, checked_out, find, opened
from bench.results import Ratio, Turn
from bench.runner import NotServed
from bench.servers.server import Server, trident
from tests.project import ROOT


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
        ({}, "", "two", "parent of HEAD, because no tag v*"),
        ({"v1.0.0": "HEAD~1"}, "HEAD~2", "one", ""),
    ],
)
def test_the_commit_is_a_named_one_or_the_newest_release_before_head(
    checkout: Path, tags: dict[str, str], named: str, subject: str, why: str
) -> None:
    for tag, commit in tags.items():
        _git(checkout, "tag", tag, commit)
    found = find(checkout, named) if named else find(checkout)
    assert found.subject == subject
    assert why in str(found)


def test_a_commit_that_is_not_there_is_refused_with_the_cure(checkout: Path) -> None:
    for name in ("nothing", "--version"):
        with pytest.raises(SystemExit, match=f"no commit {name}.*--against"):
            find(checkout, name)
    _git(checkout, "checkout", "--quiet", "HEAD~2")
    with pytest.raises(SystemExit, match="fetch more history"):
        find(checkout)


def test_the_files_are_those_of_the_commit_and_gone_at_the_end(checkout: Path) -> None:
    (checkout / "content").write_text("not committed")
    with pytest.raises(KeyError), checked_out(checkout, find(checkout)) as folder:  # noqa: PT012
        assert (folder / "content").read_text() == "two"
        # What the servers leave there is removed too.
        (folder / "left").write_text("bytecode")
        raise KeyError
    assert not folder.parent.exists()
    assert _git(checkout, "worktree", "list").count("\n") == 0
    assert (checkout / "content").read_text() == "not committed"


def _checkout(folder: Path, *options: str) -> Path:
    """A project whose `trident serve --help` names these options."""
    for package in ("core", "adapters", "app"):
        (folder / "trident" / package).mkdir(parents=True)
    text = "\n".join(f"  {option}=<string>\n      Text." for option in options)
    (folder / "trident" / "app" / "__main__.py").write_text(f"print({text!r})")
    return folder


@pytest.mark.slow
def test_every_entry_point_has_a_port() -> None:
    command = all_ports(ROOT, Path("models"), Path("log")).command
    for option in ("--http-port", "--grpc-port", "--sagemaker-port", "--vertex-ai-port", "--cache-config"):
        assert any(part.startswith(f"{option}=") for part in command), option
    assert "--allow-client-shm=true" in command


def test_options_that_an_older_checkout_does_not_know_are_left_out(tmp_path: Path) -> None:
    older = _checkout(tmp_path / "older", "--http-port", "--model-repository")
    command = all_ports(older, tmp_path, tmp_path / "log").command
    assert command[1:4] == ["-m", "trident.app", "serve"]
    options = command[4:]
    assert [option.partition("=")[0] for option in options] == ["--model-repository", "--http-port"]


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
        yield Load(server, "simple", server.url("/"), Path("script"))

    return Row("key", "a row", opened)


def _measured(servers: dict[str, Server], ours: float) -> Measured:
    with opened([_row(servers, THIS, OTHER)], servers) as (row,):
        row.pairs = [{THIS: Turn(ours, 1.0), OTHER: Turn(1000.0, 1.0)}] * 20
    return row


def test_a_row_is_this_checkouts_rate_over_the_others(servers: dict[str, Server]) -> None:
    row = _measured(servers, ours=500.0)
    assert row.verdict is Verdict.SLOWER
    assert row.cells() == ["a row", "0.500 [0.500, 0.500]", "1.000 [1.000, 1.000]", "20", "**slower**"]
    assert _measured(servers, ours=2000.0).verdict is Verdict.OK


def test_a_row_that_the_other_checkout_does_not_serve_is_new(
    servers: dict[str, Server], capsys: pytest.CaptureFixture[str]
) -> None:
    with opened([_row(servers, THIS)], servers) as (row,):
        assert row.verdict is Verdict.NEW
        assert row.cells() == ["a row", "", "", "0", "new"]
    assert "404: unknown model" in capsys.readouterr().err


def test_a_row_that_this_checkout_does_not_serve_ends_the_guard(servers: dict[str, Server]) -> None:
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
def test_only_an_interval_that_lies_below_the_limit_is_slower(
    low: float, median: float, high: float, verdict: Verdict
) -> None:
    assert Verdict.of(Ratio(median, low, high)) is verdict
    # One slower figure of two is enough.
    assert Verdict.of(Ratio(1.0, 0.98, 1.02), Ratio(0.9, 0.88, 0.92)) is Verdict.SLOWER


def test_noise_is_not_taken_for_slowness() -> None:
    verdicts = [Verdict.of(_pairs(1.0, ENOUGH, seed)) for seed in range(200)]
    assert Verdict.SLOWER not in verdicts
    assert verdicts.count(Verdict.OK) > 100
    verdicts = [Verdict.of(_pairs(0.88, ENOUGH, seed)) for seed in range(200)]
    assert verdicts.count(Verdict.SLOWER) > 190
    assert Verdict.OK not in verdicts
    verdicts = [Verdict.of(_pairs(LIMIT, ENOUGH, seed)) for seed in range(400)]
    assert verdicts.count(Verdict.SLOWER) < 0.04 * len(verdicts)
