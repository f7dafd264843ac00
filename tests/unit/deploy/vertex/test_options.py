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
        (("uplod",), "invalid choice: 'uplod'"),
        ((*UPLOAD, "--imag=x"), 'Bad option: "--imag".\nunknown option; did you mean --image?'),
        ((*UPLOAD, "words"), "Unexpected argument: words"),
        ((*UPLOAD, "--parent-model=digits"), "not allowed with argument"),
        ((*UPLOAD, "--no-default"), "the first version of a model is its default"),
        ((*UPLOAD, "--artifact-uri=/models"), "it takes the gs:// address of a folder, not '/models'"),
        ((*UPLOAD, "--model-id=Digits"), "not 'Digits'"),
        ((*UPLOAD, "--label=Team=x"), "unlike 'Team=x'"),
        ((*UPLOAD, "--env=A"), "it takes NAME=VALUE, not 'A'"),
        ((*UPLOAD, "--env=A=1", "--env=A=2"), "'A' is given twice"),
        ((*UPLOAD, "--env=AIP_MODE=x"), "the platform reserves names that begin with AIP_"),
        ((*UPLOAD, "--env=TRIDENT_LOG_VERBSE=1"), "unknown variable; did you mean TRIDENT_LOG_VERBOSE?"),
        ((*UPLOAD, "--env=TRIDNET_LOG_VERBOSE=1"), "did you mean TRIDENT_LOG_VERBOSE?"),
        ((*UPLOAD, "--env=TRIDENT_LOG_VERBOSE=much"), "TRIDENT_LOG_VERBOSE"),
        ((*UPLOAD, "--", "--vertex-ai-defalt-model=x"), "did you mean --vertex-ai-default-model?"),
        ((*UPLOAD, "--", "--vertex-ai-payload=v3"), "--vertex-ai-payload"),
        ((*UPLOAD, "--env=PORT=9001", "--", "--vertex-ai-port=$(PORT)"), "it is 8080, but the server opens 9001"),
        ((*UPLOAD, "--predict-route=predict"), "AIP_PREDICT_ROUTE is 'predict'"),
        ((*UPLOAD, "--invoke-route-prefix=/v2"), "the platform accepts only /*"),
        ((*UPLOAD, "--invoke-route-prefix=/*", "--predict-route=/p"), "not both"),
        ((*UPLOAD, "--deployment-timeout=9000"), "the platform waits at most 7200 s"),
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
        ((*NEW, "--new=dedicated", "--inference-timeout=3601"), "the platform waits at most 3600 s"),
        ((*NEW, "--new=psc"), "a psc endpoint needs at least one"),
        ((*NEW, "--new=dedicated", "--allow-project=x"), "other kinds have none"),
        ((*NEW, "--new=dedicated", "--endpoint=0123"), "not '0123'"),
        ((*DEPLOY, "--accelerator=NVIDIA_L5=1"), "'NVIDIA_L5' is not a type of accelerator; did you mean NVIDIA_L4?"),
        ((*UPLOAD, "--grpc-port=8001"), "the container needs the argument --allow-grpc=true"),
        ((*UPLOAD, "--grpc-port=1", "--", "--allow-grpc=true"), "it is 1, but the server opens 8001"),
        ((*DEPLOY, "--accelerator=NVIDIA_L4=none"), "'none' is not a number of accelerators"),
        ((*DEPLOY, "--autoscale=cpus=60"), "unknown metric 'cpus'; expected one of cpu, accelerator, requests"),
        ((*DEPLOY, "--autoscale=cpu=160"), "'160' is not a target for cpu"),
        ((*DEPLOY, "--autoscale=accelerator=60"), "accelerator needs --accelerator"),
        ((*DEPLOY, "--min-replicas=3", "--max-replicas=2"), "2 is less than --min-replicas=3"),
        ((*DEPLOY, "--min-replicas=0"), "it takes 1 or more"),
        ((*DEPLOY, "--model=a/b"), "it takes an id, or a name that begins with projects/my-project/"),
        ((*DEPLOY, "--model=digits@"), "'' is not a version"),
        ((*DEPLOY, "--deployed-model-id=0"), "it takes up to 10 digits"),
        ((*SHIFT, "--traffic=1=50"), "the sum of the shares is 50 %, not 100"),
        ((*SHIFT, "--traffic=new=100"), "it takes DEPLOYED_ID=PERCENT, such as 1=90, not 'new=100'"),
        ((*BATCH, "--format=jsonl", "--input=bq://a.b.c"), "jsonl needs an address at gs://, not 'bq://a.b.c'"),
        ((*BATCH, "--format=bigquery", "--input=bq://a", "--input=bq://b"), "a job can read only one table"),
        (
            (*BATCH, "--format=file-list", "--input=gs://a", "--key-field=k"),
            "the instances of file-list have no fields",
        ),
        (
            (*BATCH, "--format=jsonl", "--input=gs://a", "--included-fields=a", "--excluded-fields=b"),
            "use either --included-fields or --excluded-fields",
        ),
        ((*BATCH, "--format=csv", "--input=gs://a", "--instance-type=array"), "it does not apply to csv"),
        ((*BATCH, "--format=csv", "--input=gs://a", "--excluded-fields=a"), "it does not apply to csv"),
        ((*BATCH, "--format=csv", "--input=gs://a", "--parameters={"), "it takes a JSON document"),
        ((*BATCH, "--format=csv", "--input=gs://a", "--output=/tmp"), "it takes a gs:// folder or a bq:// data set"),
        (("delete",), "Nothing to delete: give --endpoint, --model or --expired"),
        (("delete", "--expired", "--project=My Project"), "it takes a project's id or number, not 'My Project'"),
        (("delete", "--expired", "--location=US"), "it takes a location such as us-central1, not 'US'"),
        (("delete", "--expired", "--api-endpoint=host"), "it takes https://HOST, or http://HOST of an emulator"),
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
