"""The commands that `python -m deploy.vertex --gcloud` prints, parsed by gcloud; none is run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.deploy.vertex.test_deploy_vertex_docs import lines
from tests.unit.deploy.vertex.vertex_command import command

LIMIT_S = 120
MACHINE = ("--machine-type=g2-standard-4", "--accelerator=NVIDIA_L4=2")
ACTIONS = [
    (
        *("upload", "--model-id=digits", "--image=image", "--artifact-uri=gs://zoo/digits", "--label=team=vision"),
        *("--env=TRIDENT_LOG_VERBOSE=1", "--env=WORDS=a, b; c", "--predict-route=/predict", "--health-route=/health"),
        *("--shared-memory-mb=64", "--deployment-timeout=600", "--startup-probe=exec:python check.py,period=9"),
        *("--health-probe=exec:true,timeout=3", "--", "--vertex-ai-default-model=digits", "--strict-readiness=true"),
    ),
    ("upload", "--parent-model=digits", "--alias=canary", "--image=image", "--artifact-uri=gs://zoo/digits"),
    (
        *("deploy", "--model=digits@2", "--endpoint=digits", "--new=shared", "--ttl=4h", "--label=team=vision"),
        *(*MACHINE, "--min-replicas=2", "--max-replicas=3", "--autoscale=cpu=60", "--autoscale=accelerator=70"),
        *("--spot", "--access-logging", "--service-account=a@b.iam.gserviceaccount.com", "--deployed-model-id=7"),
    ),
    ("shift", "--endpoint=digits", "--traffic=7=0", "--traffic=8=100"),
    ("delete", "--expired", "--endpoint=digits", "--model=digits", "--model=other@2"),
]

pytestmark = pytest.mark.slow


def verdicts(commands: list[str], folder: Path) -> dict[str, str]:
    """gcloud's error for each command; "" without an error."""
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        pytest.skip("gcloud is not installed, and Debian has no package of it")
    file = folder / "commands.json"
    file.write_text(json.dumps([{"command_string": each} for each in commands]))
    finished = subprocess.run(
        [gcloud, "meta", "lint-gcloud-commands", f"--commands-file={file}"],
        env={**os.environ, "HOME": str(folder), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert finished.stdout.startswith("["), finished.stderr
    return {each["command_string"]: each["error_message"] or "" for each in json.loads(finished.stdout)}


def test_gcloud_understands_every_command(tmp_path: Path) -> None:
    printed = []
    for action, *arguments in ACTIONS:
        found = command(action, "--gcloud", *arguments)
        assert found.status == 0, found.errors
        printed += [line for line in found.out.splitlines() if line.startswith("gcloud ")]
    assert len(printed) == 16
    found_wrong = {line: fault for line, fault in verdicts(printed, tmp_path).items() if fault}
    assert found_wrong == {}


def test_gcloud_reports_a_bad_command(tmp_path: Path) -> None:
    wrong = "gcloud ai endpoints delete e --region=us-central1 --project=p --forse"
    (fault,) = verdicts([wrong], tmp_path).values()
    assert "unrecognized arguments: --forse" in fault


def test_gcloud_understands_the_commands_of_the_document(tmp_path: Path) -> None:
    named = [line for line in lines() if line.startswith("gcloud ")]
    assert len(named) == 5
    found_wrong = {line: fault for line, fault in verdicts(named, tmp_path).items() if fault}
    assert found_wrong == {}
