from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import ROOT
from trident.app import cli
from trident.app.cli import main
from trident.app.commands import completion
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.server import SERVER_OPTIONS, ServerSettings
from trident.app.version import BUILD, VERSION

# What serves. Each process of the server imports what it needs of these after the fork.
SERVING = {"flask", "gevent", "google.protobuf", "grpc", "hpack", "jinja2", "numpy", "onnxruntime", "prometheus_client"}
SERVING |= {"shtab", "werkzeug"}


class Served:
    """Records the settings instead of serving."""

    def __init__(self) -> None:
        self.settings: list[ServerSettings] = []

    def __call__(self, settings: ServerSettings) -> int:
        self.settings.append(settings)
        return 0


@pytest.mark.parametrize("argument", ["--version", "version"])
def test_version_prints_the_version(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([argument]) == 0
    assert capsys.readouterr().out == f"trident {VERSION} ({BUILD})\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--help"], "trident validate REPO"),
        (["-h"], "trident validate REPO"),
        (["serve", "--help"], "--http-port=<integer>"),
        (["serve", "--http-port=1", "-h"], "--http-port=<integer>"),
        (["--http-port=1", "--help"], "--http-port=<integer>"),
        (["serve", "--help=http"], "--http-keepalive-secs=<number>"),
        (["--help=all"], "--http-keepalive-secs=<number>"),
        (["validate", "--help"], "--format=text|json"),
    ],
)
def test_help_prints_the_usage(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert text in capsys.readouterr().out


def test_a_missing_command_prints_the_usage_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Usage: trident serve" in printed.err


@pytest.mark.parametrize("command", [["serve"], []])
def test_options_reach_the_server_with_and_without_a_command(command: list[str]) -> None:
    served = Served()
    assert main([*command, "--model-repository=/models", "--http-port", "1"], serve=served) == 0
    assert [(each.model_repository, each.http_port) for each in served.settings] == [(("/models",), 1)]


@pytest.mark.parametrize(
    ("arguments", "repositories"),
    [
        (["/models"], ("/models",)),
        (["--http-port", "1", "/models", "--strict-readiness=false", "gs://b/more"], ("/models", "gs://b/more")),
        (["/more", "--model-repository=/models"], ("/models", "/more")),
        (["--", "--models"], ("--models",)),
    ],
)
def test_words_after_serve_are_model_repositories(arguments: list[str], repositories: tuple[str, ...]) -> None:
    served = Served()
    assert main(["serve", *arguments], serve=served) == 0
    assert [each.model_repository for each in served.settings] == [repositories]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["serve"], "--model-repository must be specified\n"),
        (["serve", "--htp-port=1"], 'Bad option: "--htp-port".\nunknown option; did you mean --http-port?\n'),
        (["--http-port=x"], 'Bad option: "--http-port".\nInvalid option value. Got x\n'),
        (["--http-port=1", "models"], "Unexpected argument: models\n"),
        (["serv"], "Unexpected argument: serv\ndid you mean `trident serve`?\n"),
        (["models"], "Unexpected argument: models\nsee `trident --help`\n"),
        (["validate"], "a model repository is missing: trident validate REPO\n"),
        (["completion", "tcsh"], "a shell must be named: trident completion bash|zsh|fish\n"),
    ],
)
def test_a_mistake_prints_the_reason_and_returns_1(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    served = Served()
    assert main(arguments, serve=served) == 1
    assert served.settings == []
    assert capsys.readouterr().err == text


def test_a_server_that_cannot_start_prints_the_reason_and_returns_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ServerSettings(model_repository=("/models",), log_file=str(tmp_path / "missing" / "log"))
    assert cli.serve(settings) == 1
    error = capsys.readouterr().err
    assert '] "error: creating server: Invalid argument - cannot open the log file ' in error


@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        ("from trident.app.cli import main; main(['--version']); main(['serve', '--help'])", SERVING | {"gunicorn"}),
        # The main process of a server.
        ("import trident.app.cli, trident.app.settings.reading, trident.app.commands.serve", SERVING),
    ],
)
def test_what_does_not_serve_imports_nothing_that_does(code: str, unneeded: set[str]) -> None:
    command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert unneeded & set(ended.stdout.split()) == set()


# --- completion


def test_every_command_and_option_of_serve_is_completed() -> None:
    assert {each.name.partition(" ")[0] for each in completion.COMMANDS} == {"", *cli.COMMANDS}
    offered = {each.name: {option.flag for option in each.options} for each in completion.COMMANDS}
    expected = {each.flag for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS) if each.flag}
    assert offered["serve"] == expected | {"help"}
    assert (offered["init"], offered["trace"]) == ({"repository", "help"}, {"request", "slowest", "help"})
    assert offered["emulate"] > offered["emulate vertex"] > {"env", "help"}
    assert completion.outline(SERVER_OPTIONS["repository_poll_secs"]) == "Seconds between two polls"
    assert all(completion.outline(each) for each in UNUSED_OPTIONS)
