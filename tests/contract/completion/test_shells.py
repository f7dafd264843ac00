"""bash, zsh and fish complete the command lines of `trident` by the scripts that it prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.completion.shells import SHELLS, Matches, bash_matches
from trident.app.commands.completion import COMMANDS, Command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a repository and a file."""
    made = tmp_path_factory.mktemp("shells") / "here"
    (made / "models").mkdir(parents=True)
    (made / "notes.txt").touch()
    return made


@pytest.fixture(scope="module", params=SHELLS)
def matches(request: pytest.FixtureRequest, folder: Path) -> Iterator[Matches]:
    """What the shell offers. Only some add the option before a value, an = or a final slash."""
    with SHELLS[request.param](folder) as offered:

        def plain(line: str) -> set[str]:
            found = {each.partition("=")[2] or each.removesuffix("=") for each in offered(line)}
            return {each if each.endswith("://") else each.removesuffix("/") for each in found}

        yield plain


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
def test_the_end_of_a_line_is_completed(matches: Matches, line: str, expected: set[str]) -> None:
    assert matches(line) == expected


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.options], ids=lambda each: each.name)
def test_every_option_of_a_command_is_offered(matches: Matches, command: Command) -> None:
    expected = {f"--{name}" for option in command.options for name in option.names}
    assert matches(" ".join(["trident", *command.name.split(), "--"])) == expected


def test_bash_completes_a_value_where_the_equals_sign_does_not_split_words(folder: Path) -> None:
    assert bash_matches("trident serve --log-format=j", folder) == {"json"}
    unsplit = bash_matches("trident serve --log-format=j", folder, words=["trident", "serve", "--log-format=j"])
    assert unsplit == {"--log-format=json"}
