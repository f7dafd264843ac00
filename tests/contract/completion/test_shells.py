"""bash, zsh and fish complete the command lines of `trident` by the scripts that it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.completion.shells import SHELLS, bash_matches
from trident.app.commands.completion import COMMANDS, Command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a repository and a file."""
    made = tmp_path / "here"
    (made / "models").mkdir(parents=True)
    (made / "notes.txt").touch()
    return made


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def matches(shell: str, line: str, folder: Path) -> set[str]:
    """What the shell offers. Only some add the option before a value, an = or a final slash."""
    offered = SHELLS[shell](line, folder)
    plain = {each.partition("=")[2] or each.removesuffix("=") for each in offered}
    return {each if each.endswith("://") else each.removesuffix("/") for each in plain}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "trident ",
            {
                *("serve", "import", "init", "validate", "doctor", "emulate", "trace", "completion", "version"),
                *("request", "status", "top", "openapi", "bench", "tune"),
            },
        ),
        ("trident val", {"validate"}),
        ("trident emulate ", {"azureml", "sagemaker", "vertex"}),
        ("trident completion ", {"bash", "zsh", "fish"}),
        ("trident serve --http-po", {"--http-port"}),
        ("trident --http-po", {"--http-port"}),
        ("trident --http-port=1 --metrics-po", {"--metrics-port"}),
        ("trident doctor --js", {"--json"}),
        ("trident emulate vertex --end", {"--endpoint-type"}),
        ("trident emulate --port 1 sagemaker --mul", {"--multi-model"}),
        ("trident serve --log-format=", {"default", "ISO8601", "json"}),
        ("trident serve --log-format j", {"json"}),
        ("trident validate --format=t", {"text"}),
        ("trident serve --allow-http=", {"true", "false"}),
        ("trident serve --http-port=", set()),
        ("trident serve ", {"models", "notes.txt", "s3://", "gs://", "as://"}),
        ("trident import ", {"models", "notes.txt", "s3://", "gs://", "as://"}),
        ("trident serve --model-control-mode=poll mod", {"models"}),
        ("trident validate models mod", {"models"}),
        ("trident validate models --for", {"--format"}),
        ("trident serve --model-repository=", {"models", "s3://", "gs://", "as://"}),
        ("trident serve --log-file=", {"models", "notes.txt"}),
        ("trident emulate sagemaker ", {"models", "notes.txt", "s3://", "gs://", "as://"}),
        ("trident emulate vertex ", {"models", "gs://"}),
    ],
)
def test_the_end_of_a_line_is_completed(shell: str, line: str, expected: set[str], folder: Path) -> None:
    assert matches(shell, line, folder) == expected


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.options], ids=lambda each: each.name)
def test_every_option_of_a_command_is_offered(shell: str, command: Command, folder: Path) -> None:
    expected = {f"--{name}" for option in command.options for name in option.names}
    assert matches(shell, " ".join(["trident", *command.name.split(), "--"]), folder) == expected


def test_bash_completes_a_value_where_the_equals_sign_does_not_split_words(folder: Path) -> None:
    assert SHELLS["bash"]("trident serve --log-format=j", folder) == {"json"}
    unsplit = bash_matches("trident serve --log-format=j", folder, words=["trident", "serve", "--log-format=j"])
    assert unsplit == {"--log-format=json"}
