"""The commands of docs/vertex.md section "Deploy": the real parser reads each, and a dry run prints its calls."""

from __future__ import annotations

import re
import shlex

import pytest

from deploy.vertex.__main__ import ACTIONS
from tests.project import ROOT
from tests.unit.deploy.vertex.vertex_command import WHERE, command

DOCUMENT = (ROOT / "docs" / "vertex.md").read_text().partition("\n## Deploy\n")[2].partition("\n## ")[0]
_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(r'^([A-Z]+)="?([^"\n]*)"?$', re.MULTILINE)
_REFERENCE = re.compile(r"\$([A-Z]+)")
_START = ["python", "-m", "deploy.vertex"]


def lines() -> list[str]:
    """Every command of the document as one line, with its variables replaced."""
    text = "".join(_BLOCK.findall(DOCUMENT)).replace("\\\n", " ")
    variables = dict(_VARIABLE.findall(text))
    while _REFERENCE.search(text):
        text = _REFERENCE.sub(lambda found: variables[found[1]], text)
    return [line for line in text.splitlines() if not _VARIABLE.fullmatch(line)]


COMMANDS = [shlex.split(line)[3:] for line in lines() if line.split()[:3] == _START]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments)[:80])
def test_documented_command_makes_calls(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    action, *others = arguments
    found = command(action, "--dry-run", *others)
    assert (found.status, found.errors) == (0, "")
    assert "Service." in found.out


def test_every_action_and_kind_of_endpoint_is_documented() -> None:
    assert {arguments[0] for arguments in COMMANDS} == set(ACTIONS)
    elsewhere = [arguments for arguments in COMMANDS if not set(WHERE) <= set(arguments)]
    assert [arguments[0] for arguments in elsewhere] == ["smoke"]  # of the emulator
    words = {word for arguments in COMMANDS for word in arguments}
    assert {"--new=shared", "--new=dedicated", "--new=psc"} <= words


@pytest.mark.parametrize("action", ACTIONS)
def test_help_names_every_option(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command(action, "--help")
    text = capsys.readouterr().out
    assert "--dry-run" in text
    used = {word.partition("=")[0] for arguments in COMMANDS if arguments[0] == action for word in arguments[1:]}
    ours = {word for word in used if word.startswith("--") and word != "--"}
    assert {word for word in ours if word not in text} <= {"--vertex-ai-default-model"}


def test_documented_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for action in ACTIONS:
        with pytest.raises(SystemExit):
            command(action, "--help")
    known = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    prose = re.sub(r"^```.*?^```$", "", DOCUMENT, flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(--[a-z][a-z-]+)", prose))
    assert named - known == {"--model-repository"}  # of the server
