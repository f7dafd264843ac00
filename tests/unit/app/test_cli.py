"""The command line, completion, and the output on a terminal."""

from __future__ import annotations

import io
import logging
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.project import ROOT
from trident.app import cli
from trident.app.cli import main
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.reading import read_settings
from trident.app.settings.server import SERVER_OPTIONS, ServerSettings
from trident.app.terminal import StatusLine, bar, log_first_request, log_services, log_settings, table
from trident.app.version import BUILD, VERSION
from trident.core.config.spec import InputSpec, ModelSpec
from trident.core.inference.tensors import BY_NAME
from trident.core.lifecycle.state import DownloadPhase
from trident.tools import commands, completion

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
        (["help", "validate"], "--format=text|json"),
        (["help"], "trident validate REPO"),
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
        (["models"], ("models",)),
        (["--http-port", "1", "models", "--strict-readiness=false", "gs://b/more"], ("models", "gs://b/more")),
        (["more", "--model-repository=/models"], ("/models", "more")),
        (["--", "--models"], ("--models",)),
    ],
)
def test_words_after_serve_are_model_repositories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], repositories: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("models", "more", "--models"):
        Path(name).mkdir()
    served = Served()
    assert main(["serve", *arguments], serve=served) == 0
    assert [each.model_repository for each in served.settings] == [repositories]


def test_hub_folder_without_a_graph_is_refused_with_the_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        (tmp_path / name).write_text("{}")
    assert main(["serve", str(tmp_path)], serve=Served()) == 1
    assert "hint: export it: optimum-cli export onnx" in capsys.readouterr().err


@pytest.mark.parametrize("files", [["1/model.onnx"], ["1/weights", "config.pbtxt"]])
def test_version_folder_is_refused_with_the_name_of_its_model(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in files:
        (path := tmp_path / "iris" / name).parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    version = tmp_path / "iris" / "1"
    assert main(["serve", str(version)], serve=Served()) == 1
    assert capsys.readouterr().err == (
        f"{version} is version 1 of the model iris\nserve the model: trident serve {version.parent}\n"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["serve"],
            "--model-repository must be specified\nname a model or a folder of them: trident serve models\n",
        ),
        (
            ["serve", "google/bert"],
            "there is neither a file nor a folder google/bert\n"
            "a model of the Hugging Face Hub is fetched before: hf download NAME --local-dir FOLDER\n",
        ),
        (["serve", "/nowhere.onnx"], "there is neither a file nor a folder /nowhere.onnx\n"),
        (["serve", "--htp-port=1"], 'Bad option: "--htp-port".\nunknown option; did you mean --http-port?\n'),
        (["--http-port=x"], 'Bad option: "--http-port".\nInvalid option value. Got x\n'),
        (["--http-port=1", "models"], "Unexpected argument: models\n"),
        (["serv"], "Unexpected argument: serv\ndid you mean `trident serve`?\n"),
        (["models"], "Unexpected argument: models\nsee `trident --help`\n"),
        (["validate"], "a model repository is missing: trident validate REPO\n"),
        (["completion", "tcsh"], "a shell must be named: trident completion bash|zsh|fish\n"),
    ],
)
def test_invalid_command_line_prints_the_reason_and_returns_1(
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
        ("import trident.app.cli, trident.app.settings.reading, trident.app.serve", SERVING),
    ],
)
def test_commands_and_main_process_do_not_import_serving_modules(code: str, unneeded: set[str]) -> None:
    command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert unneeded & set(ended.stdout.split()) == set()


# --- completion


def test_every_command_and_option_of_serve_is_completed() -> None:
    assert {each.name.partition(" ")[0] for each in completion.COMMANDS} == {"", *commands.NAMES}
    offered = {each.name: {option.flag for option in each.options} for each in completion.COMMANDS}
    expected = {each.flag for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS) if each.flag}
    assert offered["serve"] == expected | {"help"}
    assert (offered["init"], offered["trace"]) == ({"repository", "help"}, {"request", "slowest", "help"})
    assert offered["emulate"] > offered["emulate vertex"] > {"env", "help"}
    assert completion.outline(SERVER_OPTIONS["repository_poll_secs"]) == "Seconds between two polls"
    assert all(completion.outline(each) for each in UNUSED_OPTIONS)


# --- tables, progress bars and reports for a person at a terminal


def test_line_breaks_in_a_cell_do_not_break_the_table() -> None:
    lines = table(("Option", "Value", "From"), [("log-file", "first\nE0101 second\n\nthird\n", "flag")]).split("\n")
    assert len({len(line) for line in lines}) == 1
    assert [line.split("|")[2].strip() for line in lines[3:-1]] == ["first", "E0101 second", "", "third"]
    assert [line.split("|")[1].strip() for line in lines[3:-1]] == ["log-file", "", "", ""]
    assert "a\\rb\\u001b[2Kc\\u2028d" in table(("Value",), [("a\rb\x1b[2Kc\u2028d",)])


@pytest.mark.parametrize("width", [60, 80, 250])
def test_table_fits_the_terminal(width: int) -> None:
    path = "/opt/models/" + "x" * 150
    rows = [("model-repository", path, "flag"), ("http-port", "8000", "flag")]
    lines = table(("Option", "Value", "From"), rows, width)
    assert {len(line) for line in lines.split("\n")} == {min(width, 192)}
    assert "".join(line.split("|")[2].strip() for line in lines.split("\n")[3:-2]) == path


def test_progress_is_printed_as_lines_without_a_terminal() -> None:
    silent, told, rare = io.StringIO(), io.StringIO(), io.StringIO()
    for stream, every_s in ((silent, None), (told, 0.0), (rare, 3600.0)):
        line = StatusLine(stream, every_s=every_s)
        line.show("first")
        line.show("second")
        line.clear()
    assert (silent.getvalue(), told.getvalue(), rare.getvalue()) == ("", "first\nsecond\n", "first\n")


HALF = DownloadPhase(bytes_done=512_000_000, bytes_total=1_024_000_000, objects_done=1, objects_total=3, seconds=4.0)
HALF_BAR = "[###############...............]  50%  512 of 1024 MB, 1 of 3 objects, 128 MB/s"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "shown"), [(io.StringIO(), ""), (Terminal(), f"\r\033[K{HALF_BAR}\r" * 2 + "\r\033[K")]
)
def test_progress_bar_draws_one_line_on_a_terminal_only(stream: io.StringIO, shown: str) -> None:
    line = StatusLine(stream)
    for phase in (None, HALF, HALF, None, None):
        line.show_download(phase)
    assert stream.getvalue() == shown
    assert " 0%" in bar(DownloadPhase(bytes_done=0, bytes_total=0, objects_done=0, objects_total=0, seconds=0.0))


REPOSITORY = "--model-repository=/models"


def test_settings_and_addresses_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_settings(read_settings([REPOSITORY, "--http-port=9"], {"AIP_MODE": "PREDICTION"}))
    given, platforms = (record.__dict__["table"] for record in caplog.records)
    assert caplog.messages == ["options that are not at their defaults", "Vertex AI's settings"]
    assert ("http-port" in given, "metrics-port" in given, "predict" in platforms) == (True, False, True)
    log_services(read_settings([REPOSITORY], {}))
    assert "Started HTTPService at 0.0.0.0:8000" in caplog.messages


def spec(name: str, *dims: int, datatype: str = "FP32", **more: Any) -> ModelSpec:
    given = InputSpec(name="IN", datatype=BY_NAME[datatype], dims=dims)
    return ModelSpec(
        name=name, version=1, platform="", backend="", max_batch_size=4, inputs={"IN": given}, outputs={}, **more
    )


@pytest.mark.parametrize(
    ("options", "specs", "words"),
    [
        (
            [],
            [spec("large", 3, 224, 224), spec("it's", -1, 2)],
            ["http://localhost:8000/v2/models/it's/infer", "-d", "{BODY}"],
        ),
        (["--http-address=::1", "--http-port=9"], [spec("m", 2, datatype="FP16")], ["http://[::1]:9/v2"]),
        (["--http-address=10.0.0.1"], [], ["http://10.0.0.1:8000/v2"]),
    ],
)
def test_report_ends_with_a_sample_request(
    options: list[str], specs: list[ModelSpec], words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log_first_request(read_settings([REPOSITORY, *options], {}), specs)
    body = '{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,1,2],"data":[1,1]}]}'
    expected = [word.replace("{BODY}", body) for word in words]
    log_first_request(read_settings([REPOSITORY, "--allow-http=false"], {}), specs)
    (record,) = caplog.records
    assert shlex.split(record.__dict__["command"]) == ["curl", "-s", *expected]
