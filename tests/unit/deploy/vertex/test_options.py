"""The settings that the deployment commands refuse before any call, and their texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.deploy.vertex.vertex_command import command

UPLOAD = ("upload", "--dry-run", "--model-id=digits", "--image=image", "--artifact-uri=gs://zoo/digits")
MACHINE = "--machine-type=n1-standard-4"
DEPLOY = ("deploy", "--dry-run", "--model=digits", "--endpoint=digits", MACHINE)
NEW = (*DEPLOY, "--ttl=4h")
BATCH = ("batch", "--dry-run", "--model=digits", "--name=n", MACHINE, "--output=gs://zoo/out")
SHIFT = ("shift", "--dry-run", "--endpoint=digits")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((*UPLOAD, "--no-default"), "the first version of a model is its default"),
        ((*UPLOAD, "--model-id=a.b"), "not 'a.b'"),
        ((*UPLOAD, "--env=A"), "it takes NAME=VALUE, not 'A'"),
        ((*UPLOAD, "--env=A=1", "--env=A=2"), "'A' is given twice"),
        ((*UPLOAD, "--env=AIP_MODE=x"), "the platform reserves names that begin with AIP_"),
        ((*UPLOAD, "--env=TRIDENT_LOG_VERBSE=1"), "unknown variable; did you mean TRIDENT_LOG_VERBOSE?"),
        ((*UPLOAD, "--env=TRIDNET_LOG_VERBOSE=1"), "did you mean TRIDENT_LOG_VERBOSE?"),
        ((*UPLOAD, "--env=TRIDENT_LOG_VERBOSE=much"), "TRIDENT_LOG_VERBOSE"),
        ((*UPLOAD, "--", "--vertex-ai-defalt-model=x"), "did you mean --vertex-ai-default-model?"),
        ((*UPLOAD, "--", "--vertex-ai-payload=v3"), "--vertex-ai-payload"),
        (
            (*UPLOAD, "--env=PORT=9001", "--", "--vertex-ai-port=$(PORT)"),
            "but the server opens 9001",
        ),
        ((*UPLOAD, "--startup-probe=udp:1"), "it takes http:/PATH, tcp:PORT or exec:COMMAND, not 'udp:1'"),
        (
            (*UPLOAD, "--startup-probe=tcp:1,often=2"),
            "unknown setting 'often'; expected one of period",
        ),
        (UPLOAD[:-1], "--model-repository must be specified"),
        ((*DEPLOY, "--", "--log-verbose=1"), "only with upload"),
        ((*DEPLOY, "--new=shared"), "set --ttl=4h, or --ttl=none to keep it"),
        ((*DEPLOY, "--ttl=4h"), "it requires --new"),
        ((*DEPLOY, "--new=shared", "--ttl=soon"), "it takes 30m, 4h, 7d or the like, or none, not 'soon'"),
        ((*NEW, "--new=shared", "--inference-timeout=90"), "for a shared endpoint it is always 60 s"),
        ((*NEW, "--new=psc"), "a psc endpoint needs at least one"),
        ((*NEW, "--new=dedicated", "--allow-project=x"), "other kinds have none"),
        ((*DEPLOY, "--accelerator=NVIDIA_L5=1"), "'NVIDIA_L5=1' is not TYPE or TYPE=N; did you mean NVIDIA_L4?"),
        ((*UPLOAD, "--grpc-port=8001"), "the container needs the argument --allow-grpc=true"),
        ((*UPLOAD, "--grpc-port=1", "--", "--allow-grpc=true"), "it is 1, but the server opens 8001"),
        ((*DEPLOY, "--accelerator=NVIDIA_L4=none"), "'NVIDIA_L4=none' is not TYPE or TYPE=N"),
        ((*DEPLOY, "--autoscale=cpus=60"), "'cpus=60' is not one of cpu, accelerator, requests"),
        ((*DEPLOY, "--min-replicas=3", "--max-replicas=2"), "2 is less than 3"),
        ((*DEPLOY, "--model=a/b"), "it takes an id, or a name that begins with projects/my-project/"),
        ((*DEPLOY, "--model=digits@"), "not 'digits@'"),
        ((*SHIFT, "--traffic=1=50"), "the sum of the shares is 50 %, not 100"),
        ((*SHIFT, "--traffic=1=all"), "it takes DEPLOYED_ID=PERCENT, such as 1=90"),
        ((*BATCH, "--format=csv", "--input=gs://a", "--parameters={"), "it takes a JSON document"),
        (("delete",), "Nothing to delete: give --endpoint, --model or --expired"),
    ],
)
def test_bad_option_is_refused_with_a_hint(arguments: tuple[str, ...], text: str) -> None:
    found = command(*arguments)
    assert (found.status, found.out) == (2, "")
    assert text in found.errors


@pytest.mark.parametrize(("content", "text"), [(None, "No such file or directory"), ("[", "is not a v2 request")])
def test_malformed_smoke_request_is_refused(content: str | None, text: str, tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    if content is not None:
        file.write_text(content)
    found = command("smoke", "--dry-run", "--endpoint=e", f"--request={file}")
    assert (found.status, found.out) == (2, "")
    assert text in found.errors
