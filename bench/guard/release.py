"""The commit that this checkout is compared with: the last release, in a git worktree that is removed again."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TAGS = "v*"


@dataclass(frozen=True, slots=True)
class Commit:
    """`why` says how it was chosen."""

    sha: str
    subject: str
    why: str

    def __str__(self) -> str:
        return f"{self.sha[:12]} ({self.why}): {self.subject}"


def find(checkout: Path, against: str | None = None) -> Commit:
    """The commit named by `against`, else the newest tag `v*` before HEAD, else HEAD's parent.

    A tag at HEAD itself does not count: it would be compared with itself. SystemExit says what to do if there is none.
    """
    if against:
        return _commit(checkout, against, f"--against={against}")
    tag = _git(checkout, "describe", "--tags", "--abbrev=0", f"--match={TAGS}", "HEAD^")
    if tag is not None:
        return _commit(checkout, tag, f"the last release, {tag}")
    return _commit(checkout, "HEAD^", f"the parent of HEAD, because no tag {TAGS} comes before it")


@contextmanager
def checked_out(checkout: Path, commit: Commit) -> Iterator[Path]:
    """The folder of the commit's files, which is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="trident-guard-") as parent:
        folder = Path(parent, "checkout")
        done = _run(checkout, "worktree", "add", "--quiet", "--detach", str(folder), commit.sha)
        if done.returncode:
            raise SystemExit(f"git could not check {commit.sha[:12]} out: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            _run(checkout, "worktree", "remove", "--force", str(folder))


def _commit(checkout: Path, name: str, why: str) -> Commit:
    found = _git(checkout, "log", "-1", "--format=%H %s", "--end-of-options", name)
    if found is None:
        raise SystemExit(
            f"There is no commit {name} to compare with ({why}). Name one with --against, or fetch more history: "
            "git fetch --tags --unshallow"
        )
    sha, _, subject = found.partition(" ")
    return Commit(sha, subject, why)


def _git(checkout: Path, *arguments: str) -> str | None:
    """What the command prints, or None if it fails."""
    done = _run(checkout, *arguments)
    return done.stdout.strip() if done.returncode == 0 else None


def _run(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit("`git` is not installed. On Debian and Ubuntu: apt install git") from None
