"""docs/sagemaker.md: its commands are valid, and it lists every permission and parameter."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from tests.project import ROOT
from tests.unit.deploy.sagemaker.sagemaker_command import IMAGE, ROLE, dry_run

DOCUMENT = (ROOT / "docs" / "sagemaker.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
LINES = [line for block in BLOCKS for line in block.replace("\\\n", "").splitlines()]
PREFIX = "python -m deploy.sagemaker "
COMMANDS = [line.removeprefix(PREFIX) for line in LINES if line.startswith(PREFIX)]
# Permissions that no plan shows but the platform needs; the document lists each.
IMPLIED = {"iam:PassRole", "iam:CreateServiceLinkedRole", "sagemaker:AddTags", "cloudwatch:TagResource"}


def test_documented_variables_are_those_of_the_commands() -> None:
    assert f"IMAGE={IMAGE}" in LINES
    assert f"ROLE={ROLE}" in LINES


def test_every_action_and_kind_has_a_command() -> None:
    assert {command.split()[0] for command in COMMANDS} == {"create", "update", "scale", "smoke", "delete"}
    kinds = {found for command in COMMANDS for found in re.findall(r"--kind ([a-z-]+)", command)}
    assert kinds == {"multi-model", "async", "serverless", "batch"}


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_command_makes_a_valid_plan(command: str) -> None:
    arguments = shlex.split(command.replace("$IMAGE", IMAGE).replace("$ROLE", ROLE))
    calls = dry_run(*arguments)
    assert calls
    prose = DOCUMENT.replace("\n", " ")
    assert {call.name.partition(".")[2] for call in calls if call.name.partition(".")[2] not in prose} == set()


def test_documented_permissions_to_delete_are_those_of_the_plan() -> None:
    row = next(line for line in DOCUMENT.splitlines() if line.startswith("| `delete` |"))
    scaling = next(line for line in DOCUMENT.splitlines() if line.startswith("| `scale` |"))
    for service, _, operation in (call.name.partition(".") for call in dry_run("delete", "x")):
        assert operation in (scaling if service.startswith("application") else row)
    assert {right for right in IMPLIED if right not in DOCUMENT} == set()


def test_documented_template_parameters_exist() -> None:
    (command,) = [line for line in LINES if line.startswith("aws cloudformation deploy")]
    given = dict(re.findall(r"([A-Z]\w+)=(\S+)", command))
    template = (ROOT / "deploy" / "sagemaker" / "cloudformation.yaml").read_text()
    parameters = yaml.safe_load(template.partition("\nParameters:\n")[2].partition("\nConditions:\n")[0])
    needed = {name for name, each in parameters.items() if "Default" not in each}
    assert needed <= set(given) <= set(parameters)
    patterns = {name: parameters[name].get("AllowedPattern", ".*") for name in given}
    assert {name for name, value in given.items() if not re.fullmatch(patterns[name], value)} == set()
    assert {"Kind", "MinInstances", "ModelKey", "ImageDigest"} <= set(parameters)
