"""bench/results.py: a run that shared its cores is not published."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench import results
from bench.machine import LoadSeen, LoadWatch
from bench.results import CROWDED, Publication, add_publication_arguments, machine_sentence, update_readme

MARKS = ("<!-- begin -->", "<!-- end -->")
QUIET = LoadSeen(others=0.02, stolen=0.0, load_average=0.3)
BUSY = LoadSeen(others=0.4, stolen=0.0, load_average=3.0)


class Watch(LoadWatch):
    """Sees what it was told."""

    def __init__(self, during: LoadSeen) -> None:
        self.during = during

    def seen(self) -> LoadSeen:
        return self.during


def written(folder: Path, before: LoadSeen, during: LoadSeen, *arguments: str) -> Path:
    parser = argparse.ArgumentParser()
    add_publication_arguments(parser)
    options = parser.parse_args([f"--results={folder}", *arguments])
    run = Publication(options, look=lambda: before, watch=lambda: Watch(during))
    return run.write("-part", "{}", "text", run.seen())


@pytest.fixture(autouse=True)
def unpublished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "UNPUBLISHED", tmp_path / "unpublished")
    return tmp_path / "unpublished"


def test_a_quiet_run_is_published(tmp_path: Path) -> None:
    page = written(tmp_path / "results", QUIET, QUIET)
    assert page.parent == tmp_path / "results"
    assert page.read_text() == "text"
    assert page.with_suffix(".json").read_text() == "{}"
    assert page.name.endswith("-part.md")


def test_a_run_does_not_begin_on_a_crowded_machine(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"other processes took 40% .* --crowded"):
        written(tmp_path, BUSY, QUIET)


def test_a_run_that_was_crowded_meanwhile_is_not_published(tmp_path: Path, unpublished: Path) -> None:
    page = written(tmp_path / "results", QUIET, BUSY)
    assert page.parent == unpublished
    assert not (tmp_path / "results").exists()


def test_the_override_publishes_a_crowded_run_with_a_mark(tmp_path: Path) -> None:
    page = written(tmp_path / "results", BUSY, BUSY, "--crowded")
    assert page.parent == tmp_path / "results"
    assert page.name.endswith("-crowded.md")
    assert CROWDED in machine_sentence(BUSY)


def test_the_override_leaves_a_quiet_run_unmarked(tmp_path: Path) -> None:
    assert "crowded" not in written(tmp_path, QUIET, QUIET, "--crowded").name
    assert CROWDED not in machine_sentence(QUIET)


def test_update_readme_replaces_the_text_between_the_marks(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nafter\n")
    update_readme(readme, "new\n", MARKS)
    assert readme.read_text() == f"before\n{MARKS[0]}\nnew\n{MARKS[1]}\nafter\n"


def test_update_readme_refuses_a_page_without_marks(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the marks"):
        update_readme(readme, "new", MARKS)
