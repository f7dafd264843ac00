"""docs/kubernetes.md: its commands, its example, its table of folders, and its figures."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.contract.deploy.kubernetes_manifests import (
    KUBERNETES,
    OVERLAYS,
    PARTS,
    SERVERS,
    Manifests,
    copied_tree,
    kustomized,
    manifests,
    validate,
)
from tests.project import ROOT

pytestmark = pytest.mark.slow

DOCUMENT = (ROOT / "docs" / "kubernetes.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(kubectl kustomize[^`]*)`")
TABLE_ROW = re.compile(r"^\| `([\w/-]+)` \|", re.MULTILINE)
SECOND = re.compile(r"^\| (\d+) \| (.*) \|$", re.MULTILINE)
COMMANDS = [
    shlex.split(command)
    for text in [*(text for kind, text in BLOCK.findall(DOCUMENT) if kind == "bash"), *INLINE.findall(DOCUMENT)]
    for command in re.split(r"\n|&&", text)
    if command.strip().startswith("kubectl")
]
FOLDERS = [command[command.index(word) + 1] for command in COMMANDS for word in ("-k", "kustomize") if word in command]
FILES = [command[command.index("-f") + 1] for command in COMMANDS if "-f" in command]


@pytest.mark.parametrize("folder", FOLDERS)
def test_applied_folder_builds(folder: str) -> None:
    assert kustomized(ROOT / folder)


def test_commands_and_their_files_exist() -> None:
    assert len(FOLDERS) >= 3
    assert FILES
    for file in FILES:
        assert yaml.safe_load((ROOT / file).read_text())["kind"] == "InferenceService"


def test_scaled_deployment_exists() -> None:
    (command,) = [command for command in COMMANDS if "scale" in command]
    stack = manifests("overlays/aws")
    assert command[command.index("--namespace") + 1] == stack.one("Namespace")["metadata"]["name"]
    assert f"deployment/{stack.one('Deployment')['metadata']['name']}" in command


def test_example_builds_with_its_differences(tmp_path: Path) -> None:
    own = copied_tree(tmp_path) / "overlays" / "own"
    own.mkdir()
    for text in [text for kind, text in BLOCK.findall(DOCUMENT) if kind == "yaml"]:
        (own / text.partition("\n")[0].removeprefix("# ")).write_text(text)
    stack = Manifests(kustomized(own))
    for kind in ("Deployment", "ServiceAccount", "ConfigMap", "NetworkPolicy"):
        for each in stack.of(kind):
            validate(each)
    assert stack.settings.model_repository == ("gs://my-bucket/models",)
    assert (stack.settings.model_control_mode, stack.settings.load_model) == ("explicit", ("*",))
    assert stack.settings.log_format == "json"
    assert stack.container["image"] == "registry.example.com/trident:gpu"
    annotations = stack.one("ServiceAccount")["metadata"]["annotations"]
    assert annotations == {"iam.gke.io/gcp-service-account": "trident@my-project.iam.gserviceaccount.com"}


def test_table_has_every_folder() -> None:
    built = {
        *SERVERS,
        *(f"parts/{name}" for name in PARTS),
        *(f"overlays/{name}" for name in OVERLAYS),
        "kserve",
        "kserve-gpu",
    }
    assert set(TABLE_ROW.findall(DOCUMENT)) == built
    assert all((KUBERNETES / folder / "kustomization.yaml").is_file() for folder in built)


def test_seconds_are_those_of_the_pod() -> None:
    stack = manifests("overlays/aws")
    settings = stack.settings
    wait = int(stack.container["lifecycle"]["preStop"]["exec"]["command"][1])
    closed = wait + int(settings.shutdown_grace_secs)
    told = {int(second): what for second, what in SECOND.findall(DOCUMENT)}
    assert list(told)[:4] == [0, wait, closed, closed + settings.exit_timeout_secs]
    assert "SIGTERM" in told[wait]
    assert "terminationGracePeriodSeconds" in told[stack.pod["terminationGracePeriodSeconds"]]


def test_figures_are_those_of_the_autoscalers() -> None:
    hpa = manifests("parts/hpa").one("HorizontalPodAutoscaler")["spec"]
    keda = manifests("parts/keda").one("ScaledObject")["spec"]
    (pods,), (trigger,) = hpa["metrics"], keda["triggers"]
    for target, least, most in (
        (pods["pods"]["target"]["averageValue"], hpa["minReplicas"], hpa["maxReplicas"]),
        (trigger["metadata"]["threshold"], keda["minReplicaCount"], keda["maxReplicaCount"]),
    ):
        assert f"aim at {target} pending requests" in DOCUMENT
        assert f"with {least} to {most} pods" in DOCUMENT
    assert f"every {keda['pollingInterval']} seconds" in DOCUMENT
    assert f"keeps {keda['fallback']['replicas']} pods" in DOCUMENT
