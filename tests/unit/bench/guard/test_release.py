"""bench/guard.py: which commit is compared, and its files. Real git repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.guard import checked_out, find


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


def test_it_is_the_newest_release_before_head(checkout: Path) -> None:
    _git(checkout, "tag", "v1.0.0", "HEAD~2")
    _git(checkout, "tag", "v1.1.0", "HEAD~1")
    _git(checkout, "tag", "nightly", "HEAD~1")
    commit = find(checkout)
    assert (commit.subject, commit.why) == ("two", "the last release, v1.1.0")


def test_a_release_at_head_is_not_compared_with_itself(checkout: Path) -> None:
    _git(checkout, "tag", "v1.0.0", "HEAD~2")
    _git(checkout, "tag", "v2.0.0", "HEAD")
    assert find(checkout).subject == "one"


def test_without_a_release_it_is_the_parent_and_says_so(checkout: Path) -> None:
    commit = find(checkout)
    assert commit.subject == "two"
    assert "parent of HEAD, because no tag v*" in str(commit)


def test_a_named_commit_wins_over_a_release(checkout: Path) -> None:
    _git(checkout, "tag", "v1.0.0", "HEAD~1")
    assert find(checkout, "HEAD~2").subject == "one"


@pytest.mark.parametrize("name", ["nothing", "--version"])
def test_an_unknown_commit_is_refused_with_the_cure(checkout: Path, name: str) -> None:
    with pytest.raises(SystemExit, match=f"no commit {name}.*--against"):
        find(checkout, name)


def test_a_checkout_without_history_is_refused_with_the_cure(checkout: Path) -> None:
    _git(checkout, "checkout", "--quiet", "HEAD~2")
    with pytest.raises(SystemExit, match="fetch more history"):
        find(checkout)


def test_the_files_are_those_of_the_commit_and_gone_at_the_end(checkout: Path) -> None:
    (checkout / "content").write_text("not committed")
    with checked_out(checkout, find(checkout)) as folder:
        assert (folder / "content").read_text() == "two"
        # What the servers leave there is removed too.
        (folder / "left").write_text("bytecode")
    assert not folder.exists()
    assert not folder.parent.exists()
    assert _git(checkout, "worktree", "list").count("\n") == 0
    assert (checkout / "content").read_text() == "not committed"


def test_the_files_are_gone_after_an_error(checkout: Path) -> None:
    with pytest.raises(KeyError), checked_out(checkout, find(checkout)) as folder:
        raise KeyError
    assert not folder.exists()
    assert _git(checkout, "worktree", "list").count("\n") == 0
