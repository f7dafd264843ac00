"""bench/guard.py: the options, a row's line, and rows that one of the checkouts does not serve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.guard import OTHER, ROWS, THIS, AllDoors, Measured, NotServed, Row, Verdict, opened, parse
from bench.turns import HttpLoad, Load, Turn
from tests.project import ROOT


@pytest.fixture(scope="module")
def servers() -> dict[str, AllDoors]:
    """Not started."""
    return {name: AllDoors(ROOT, Path(name), "tabular", Path(f"{name}.log")) for name in (THIS, OTHER)}


def _row(servers: dict[str, AllDoors], *served: str) -> Row:
    """A row that only these servers serve."""

    @contextmanager
    def opened(server: AllDoors) -> Iterator[Load]:
        if server not in [servers[name] for name in served]:
            raise NotServed("404: unknown model")
        yield HttpLoad(server, "simple", server.url("/"), Path("script"))

    return Row("key", "a row", opened)


def _measured(servers: dict[str, AllDoors], ours: float) -> Measured:
    with opened([_row(servers, THIS, OTHER)], servers) as (row,):
        row.pairs = [{THIS: Turn(ours, 1.0), OTHER: Turn(1000.0, 1.0)}] * 20
    return row


def test_a_row_is_this_checkouts_rate_over_the_others(servers: dict[str, AllDoors]) -> None:
    row = _measured(servers, ours=500.0)
    assert row.verdict is Verdict.SLOWER
    assert row.cells() == ["a row", "0.500 [0.500, 0.500]", "1.000 [1.000, 1.000]", "20", "**slower**"]
    assert _measured(servers, ours=2000.0).verdict is Verdict.OK


def test_a_row_that_the_other_checkout_does_not_serve_is_new(
    servers: dict[str, AllDoors], capsys: pytest.CaptureFixture[str]
) -> None:
    with opened([_row(servers, THIS)], servers) as (row,):
        assert row.verdict is Verdict.NEW
        assert row.cells() == ["a row", "", "", "0", "new"]
    assert "404: unknown model" in capsys.readouterr().err


def test_a_row_that_this_checkout_does_not_serve_ends_the_guard(servers: dict[str, AllDoors]) -> None:
    with (
        pytest.raises(SystemExit, match="a row: this checkout does not serve it: 404"),
        opened([_row(servers, OTHER)], servers),
    ):
        pass


def test_parse_takes_keys_of_rows() -> None:
    assert parse(["--only", "cache,sequences"]).only == ["cache", "sequences"]
    assert parse([]).only == [row.key for row in ROWS]
    with pytest.raises(SystemExit):
        parse(["--only", "cache hit"])
