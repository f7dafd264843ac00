"""bench/guard.py: the command of a server with all doors."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.guard import AllDoors
from tests.project import ROOT


def _checkout(folder: Path, *options: str) -> Path:
    """A project whose `trident serve --help` names these options."""
    for package in ("core", "adapters", "app"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text("")
    text = "\n".join(f"  {option}=<string>\n      Text." for option in options)
    (folder / "app" / "__main__.py").write_text(f"print({text!r})")
    return folder


@pytest.mark.slow
def test_this_checkout_knows_all_options(tmp_path: Path) -> None:
    command = AllDoors(ROOT, tmp_path, "tabular", tmp_path / "log").command
    for option in ("--http-port", "--grpc-port", "--sagemaker-port", "--vertex-ai-port", "--cache-config"):
        assert any(part.startswith(f"{option}=") for part in command), option
    assert "--allow-client-shm=true" in command


def test_options_that_an_older_checkout_does_not_know_are_left_out(tmp_path: Path) -> None:
    older = _checkout(tmp_path / "older", "--http-port", "--model-repository")
    command = AllDoors(older, tmp_path, "tabular", tmp_path / "log").command
    assert command[1:4] == ["-m", "app", "serve"]
    options = command[4:]
    assert [option.partition("=")[0] for option in options] == ["--model-repository", "--http-port"]
