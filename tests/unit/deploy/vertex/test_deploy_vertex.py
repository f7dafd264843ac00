"""`python -m deploy.vertex`: its messages in a dry run, and the real SDK on the emulator's project, without containers.

tests/contract/deploy/test_vertex_commands.py has the way of a model from its upload to its deletion.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from flask import request
from google.cloud.aiplatform_v1 import AcceleratorType, Endpoint, PrivateServiceConnectConfig

from deploy.sagemaker.options import ACTIONS as SAGEMAKER_ACTIONS
from deploy.smoke_forms import Agreement, Form
from deploy.vertex.api import CallFailed, Reply
from deploy.vertex.options import ACTIONS
from deploy.vertex.smoke import Check, address_of, check_answers, check_metrics
from tests.project import ROOT
from tests.unit.deploy.vertex.vertex_command import WHERE, Finished, command, dry_run
from trident.tools.emulators.container import BreachReport
from trident.tools.emulators.vertex.batch import BatchJobs
from trident.tools.emulators.vertex.container import RunningContainer
from trident.tools.emulators.vertex.emulator import VertexApi
from trident.tools.emulators.vertex.endpoint import Deployment, GoogleError, VertexLimits
from trident.tools.emulators.vertex.project import Project

PLACE = "projects/my-project/locations/us-central1"
IMAGE = "us-central1-docker.pkg.dev/my-project/trident/trident:1"
MACHINE = "--machine-type=n1-standard-4"
UPLOAD = (f"--image={IMAGE}", "--artifact-uri=gs://zoo/digits")
DIGITS = f"{PLACE}/models/digits"
BATCH = ("batch", "--model=digits@2", "--name=night", MACHINE)


# --- the messages


def test_upload_sends_the_whole_container(tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{"UploadModel": {"model": {"containerSpec": {"sharedMemorySizeMb": "256"}}}}')
    ((name, sent),) = dry_run(
        "upload",
        f"--settings={settings}",
        "--model-id=digits",
        *UPLOAD,
        "--env=TRIDENT_LOG_VERBOSE=1",
        "--env=WHICH=digits",
        "--deployment-timeout=3600",
        "--startup-probe=exec:python /opt/trident/healthcheck.py,period=10,timeout=5,failures=60",
        "--health-probe=http:/health,period=5,delay=30",
        "--label=team=vision",
        "--service-account=reader@my-project.iam.gserviceaccount.com",
        "--",
        "--vertex-ai-default-model=$(WHICH)",
    )
    assert (name, sent.parent, sent.model_id, sent.parent_model) == ("UploadModel", PLACE, "digits", "")
    assert sent.service_account == "reader@my-project.iam.gserviceaccount.com"
    model, container = sent.model, sent.model.container_spec
    assert (model.artifact_uri, dict(model.labels)) == ("gs://zoo/digits", {"team": "vision"})
    assert (container.image_uri, list(container.args)) == (IMAGE, ["--vertex-ai-default-model=$(WHICH)"])
    assert {each.name: each.value for each in container.env} == {"TRIDENT_LOG_VERBOSE": "1", "WHICH": "digits"}
    assert [port.container_port for port in container.ports] == [8080]
    assert (container.shared_memory_size_mb, container.deployment_timeout.total_seconds()) == (256, 3600)
    assert container.health_probe.initial_delay_seconds == 30
    startup = container.startup_probe
    assert list(startup.exec_.command) == ["python", "/opt/trident/healthcheck.py"]
    assert (startup.period_seconds, startup.timeout_seconds, startup.failure_threshold) == (10, 5, 60)
    assert (container.health_probe.http_get.path, container.health_probe.http_get.port) == ("/health", 8080)


@pytest.mark.parametrize(("more", "aliases"), [([], ["canary", "default"]), (["--no-default"], ["canary"])])
def test_new_version_is_the_default_unless_told_otherwise(more: list[str], aliases: list[str]) -> None:
    ((_, sent),) = dry_run("upload", "--parent-model=digits", "--alias=canary", *UPLOAD, *more)
    assert (sent.parent_model, sent.model_id, list(sent.model.version_aliases)) == (DIGITS, "", aliases)


def test_deploy_creates_a_dedicated_endpoint() -> None:
    (created, endpoint), (deployed, sent) = dry_run(
        "deploy",
        "--model=digits@canary",
        "--endpoint=digits",
        "--new=dedicated",
        "--ttl=4h",
        "--inference-timeout=300",
        "--label=team=vision",
        "--machine-type=g2-standard-4",
        "--accelerator=NVIDIA_L4=2",
        "--min-replicas=2",
        "--max-replicas=5",
        *(f"--autoscale={each}" for each in ("cpu=70", "accelerator=60", "requests=900")),
        "--service-account=server@my-project.iam.gserviceaccount.com",
        "--spot",
        "--deployed-model-id=17",
    )
    assert (created, deployed) == ("CreateEndpoint", "DeployModel")
    made = endpoint.endpoint
    assert made.dedicated_endpoint_enabled
    assert made.client_connection_config.inference_timeout == timedelta(seconds=300)
    assert dict(made.labels) == {"team": "vision", "trident-expires": "20261122t160000z"}
    assert dict(sent.traffic_split) == {"0": 100}
    model, resources = sent.deployed_model, sent.deployed_model.dedicated_resources
    assert (model.model, model.display_name, model.id) == (f"{DIGITS}@canary", "digits-canary", "17")
    assert model.service_account == "server@my-project.iam.gserviceaccount.com"
    machine = resources.machine_spec
    assert (machine.machine_type, machine.accelerator_count) == ("g2-standard-4", 2)
    assert machine.accelerator_type == AcceleratorType.NVIDIA_L4
    assert (resources.min_replica_count, resources.max_replica_count, resources.spot) == (2, 5, True)
    assert {each.metric_name.rpartition("online/")[2]: each.target for each in resources.autoscaling_metric_specs} == {
        "cpu/utilization": 70,
        "accelerator/duty_cycle": 60,
        "request_count": 900,
    }


def test_deploy_creates_a_private_endpoint() -> None:
    more = ["--new=psc", "--allow-project=one", "--allow-project=other", "--ttl=none"]
    (_, sent), _ = dry_run("deploy", "--model=digits", "--endpoint=digits", *more, MACHINE)
    private = sent.endpoint.private_service_connect_config
    assert (private.enable_private_service_connect, list(private.project_allowlist)) == (True, ["one", "other"])
    assert not sent.endpoint.dedicated_endpoint_enabled
    assert dict(sent.endpoint.labels) == {}


def test_batch_job_has_every_option() -> None:
    (name, sent), (looked, _) = dry_run(
        *BATCH,
        "--input=gs://zoo/in/*.jsonl",
        "--output=gs://zoo/out",
        "--format=jsonl",
        "--instance-type=object",
        "--key-field=id",
        "--included-fields=INPUT,id",
        '--parameters={"outputs": ["OUTPUT"]}',
        "--batch-size=16",
        "--replicas=2",
        "--max-replicas=4",
        "--wait",
    )
    assert (name, looked) == ("CreateBatchPredictionJob", "GetBatchPredictionJob")
    job = sent.batch_prediction_job
    assert (job.display_name, job.model) == ("night", f"{DIGITS}@2")
    given, config, machines = job.input_config, job.instance_config, job.dedicated_resources
    assert (given.instances_format, list(given.gcs_source.uris)) == ("jsonl", ["gs://zoo/in/*.jsonl"])
    assert job.output_config.gcs_destination.output_uri_prefix == "gs://zoo/out"
    assert (config.instance_type, config.key_field, list(config.included_fields)) == ("object", "id", ["INPUT", "id"])
    assert dict(job.model_parameters) == {"outputs": ["OUTPUT"]}
    assert job.manual_batch_tuning_parameters.batch_size == 16
    assert (machines.starting_replica_count, machines.max_replica_count) == (2, 4)
    ((_, sent),) = dry_run(*BATCH, "--input=bq://p.d.t", "--output=bq://p.d", "--format=bigquery")
    job = sent.batch_prediction_job
    assert job.input_config.bigquery_source.input_uri == "bq://p.d.t"
    assert job.output_config.bigquery_destination.output_uri == "bq://p.d"


def test_dry_run_uses_placeholders_for_answers() -> None:
    names = [name for name, _ in dry_run("delete", "--expired", "--model=digits")]
    assert names == ["ListEndpoints", "GetEndpoint", "UndeployModel", "DeleteEndpoint", "DeleteModel"]


def test_dry_run_abbreviates_long_and_binary_bodies() -> None:
    found = command("smoke", "--dry-run", "--endpoint=e", f"--request={ROOT}/deploy/digits/7.json")
    assert found.status == 0, found.errors
    assert "<1600000 bytes in all>" in found.out
    assert re.search(r"binary\+json;json-header-size=\d+\n<\d+ bytes in all>", found.out)
    assert "X-Vertex-Ai-Triton-Redirect: metrics" in found.out
    assert len(found.out) < 10_000


# --- the calls


class AtOnce(Project):
    """A project whose operations are done when they are answered."""

    def _begin(self, of: str, run: Callable[[], dict[str, Any]], *, is_short: bool = False) -> dict[str, Any]:
        return super()._begin(of, run, is_short=True)


class Platform:
    """`asked` has the calls that changed something, by their last word. Those of `failing` are refused.

    Containers become ready, unless `is_ready` is false.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failing = ""
        self.is_ready = True
        self.states = ["JOB_STATE_RUNNING", "JOB_STATE_FAILED"]
        self.project = AtOnce(self._started)
        self.project.jobs = cast(BatchJobs, SimpleNamespace(create=self._job, job=self._job, close=lambda: None))
        self.project.has_direct_calls = False
        self.api = VertexApi(self.project, 0, BreachReport(), lambda _: None)
        self.api.application.before_request(self._note)

    def _started(self, deployment: Deployment, limits: VertexLimits, model: Mapping[str, Any]) -> RunningContainer:
        made = SimpleNamespace(
            endpoint=SimpleNamespace(limits=limits, direct=None),
            wait_until_ready=lambda _: self.is_ready,
            stop=lambda: None,
        )
        return cast(RunningContainer, made)

    def _job(self, *_: Any, number: str = "") -> dict[str, Any]:
        """A new job is pending, and then has each of `states`."""
        state = self.states.pop(0) if number else "JOB_STATE_PENDING"
        error = {"error": {"code": 3, "message": "no such file"}} if state == "JOB_STATE_FAILED" else {}
        counts = {"completionStats": {"successfulCount": "1", "failedCount": "9"}}
        return {"name": f"{PLACE}/batchPredictionJobs/7", "state": state, **counts, **error}

    def _note(self) -> None:
        name = re.split("[:/]", request.path)[-1]
        if name == self.failing:
            raise GoogleError(403, f"no right to {name}")
        if request.method != "GET":
            self.asked.append(name if ":" in request.path else f"{request.method} {name}")

    def run(self, action: str, *arguments: str) -> Finished:
        return command(action, *arguments, address=self.api.url)

    def deployed(self, endpoint: str, split: dict[str, int], **labels: str) -> None:
        """Add an endpoint with a deployed model for each entry of `split`."""
        labels = {key.replace("_", "-"): value for key, value in labels.items()}
        self.project.create_endpoint("us-central1", {"labels": labels}, endpoint)
        for own in split:
            model = {"id": own, "model": DIGITS, "displayName": f"model {own}"}
            self.project.deploy(endpoint, {"deployedModel": model})
        self.project.update_endpoint(endpoint, {"trafficSplit": split}, "trafficSplit", "")

    def resource(self, endpoint: str) -> Any:
        return self.project.endpoint(endpoint, "")


@pytest.fixture
def platform() -> Iterator[Platform]:
    made = Platform()
    made.project.upload("us-central1", {"modelId": "digits"})
    with made.api:
        yield made
    made.project.close()


@pytest.mark.parametrize(("more", "split"), [([], {"1": 100}), (["--all-traffic"], {"2": 100})])
def test_additional_model_gets_no_traffic_unless_it_gets_all(
    more: list[str], split: dict[str, int], platform: Platform
) -> None:
    platform.deployed("digits", {"1": 100})
    found = platform.run("deploy", "--model=digits", "--endpoint=digits", "--deployed-model-id=2", MACHINE, *more)
    assert (found.status, platform.asked) == (0, ["deployModel"])
    assert platform.resource("digits")["trafficSplit"] == split


def test_shift_moves_all_traffic_from_a_canary(platform: Platform) -> None:
    platform.deployed("digits", {"1": 100, "2": 0})
    canary = platform.run("shift", "--endpoint=digits", "--traffic=1=90", "--traffic=2=10")
    assert (canary.status, canary.waits) == (0, [])
    kept = platform.run("shift", "--endpoint=digits", "--traffic=1=0", "--traffic=2=100", "--keep")
    assert "now: 1=90 %, 2=10 %" in kept.out
    assert len(platform.resource("digits")["deployedModels"]) == 2
    full = platform.run("shift", "--endpoint=digits", "--traffic=1=0", "--traffic=2=100")
    assert (full.status, full.waits) == (0, [60.0])
    assert [each["id"] for each in platform.resource("digits")["deployedModels"]] == ["2"]


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        (["3=100", "1=0"], "3 is not deployed there; deployed are: 1 (model 1), 2 (model 2)"),
        (["1=100"], "--traffic does not name 2, which is also deployed there: give it a share or 0"),
    ],
)
def test_shift_that_does_not_match_the_endpoint_changes_nothing(
    shares: list[str], text: str, platform: Platform
) -> None:
    platform.deployed("digits", {"1": 100, "2": 0})
    found = platform.run("shift", "--endpoint=digits", *(f"--traffic={share}" for share in shares))
    assert (found.status, platform.asked, text in found.errors) == (1, [], True)


def test_refused_call_ends_the_plan_with_a_hint(platform: Platform) -> None:
    platform.failing = "endpoints"
    found = platform.run("deploy", "--model=digits", "--endpoint=digits", "--new=shared", "--ttl=1d", MACHINE)
    assert (found.status, platform.asked) == (1, [])
    assert "no right to endpoints" in found.errors
    assert "roles/aiplatform.user" in found.errors


def test_failed_deployment_has_its_reason(platform: Platform) -> None:
    platform.deployed("digits", {})
    platform.is_ready = False
    found = platform.run("deploy", "--model=digits", "--endpoint=digits", MACHINE)
    assert (found.status, "Model server never became ready" in found.errors) == (1, True)


def test_delete_undeploys_everything_first(platform: Platform) -> None:
    platform.deployed("digits", {"1": 60, "2": 40, "3": 0})
    found = platform.run("delete", "--endpoint=digits", "--model=digits")
    assert (found.status, found.out.count("undeploy")) == (0, 3), found.out
    assert platform.asked == ["undeployModel"] * 3 + ["DELETE digits"] * 2
    assert (platform.project.endpoints("", ""), platform.project.models()) == ({"endpoints": []}, {"models": []})


def test_delete_continues_after_failures(platform: Platform) -> None:
    platform.project.upload("us-central1", {"modelId": "other"})
    platform.deployed("one", {"1": 100})
    platform.failing = "undeployModel"
    found = platform.run("delete", "--endpoint=gone", "--endpoint=one", "--model=other")
    assert found.status == 1
    assert "it no longer exists" in found.out
    assert found.out.count("FAILED") == 2  # to undeploy, and therefore to delete
    assert "has deployed models" in found.out
    assert platform.asked[-1] == "DELETE other"


def test_delete_expired_removes_only_expired_endpoints(platform: Platform) -> None:
    platform.deployed("over", {"1": 100}, trident_expires="20261122t115959z")
    platform.deployed("later", {"1": 100}, trident_expires="20261122t120001z")
    platform.deployed("now", {}, trident_expires="20261122t120000z")
    platform.deployed("strange", {"1": 100}, trident_expires="tomorrow")
    platform.deployed("kept", {"1": 100})
    found = platform.run("delete", "--expired")
    assert found.status == 0, found.out
    left = [each["name"].rpartition("/")[2] for each in platform.project.endpoints("", "")["endpoints"]]
    assert left == ["later", "strange", "kept"]
    assert "stays: strange, whose label trident-expires is 'tomorrow', which is not a time" in found.out


def test_batch_job_is_followed_to_its_end(platform: Platform) -> None:
    files = ("--input=gs://zoo/in.jsonl", "--output=gs://zoo/out", "--format=jsonl")
    found = platform.run(*BATCH, *files)
    assert (found.status, "batchPredictionJobs/7" in found.out, len(platform.states)) == (0, True, 2)
    found = platform.run(*BATCH, *files, "--wait")
    assert (found.status, found.waits) == (1, [30.0, 30.0])
    assert "running: 1 predicted, 9 failed" in found.out
    assert found.errors == "error: failed: 1 predicted, 9 failed\nno such file\n"


def test_unreachable_platform_is_one_error() -> None:
    found = command("delete", "--model=digits")
    assert found.status == 1
    assert "FAILED" in found.out
    assert "Traceback" not in found.out + found.errors


@pytest.mark.parametrize(
    ("platform", "absent", "arguments", "installation"),
    [
        ("vertex", "requests", ("delete", *WHERE), "pip install . 'google-cloud-aiplatform>=2.7,<3'"),
        ("sagemaker", "boto3", ("delete", "x"), "pip install ."),
        ("sagemaker", "numpy", ("smoke", "x"), "pip install ."),
        ("sagemaker", "botocore", ("delete", "x", "--settings=file"), "pip install ."),
    ],
)
def test_a_missing_package_is_named_with_its_installation(
    platform: str, absent: str, arguments: tuple[str, ...], installation: str
) -> None:
    hidden = (
        f"import runpy, sys; sys.modules['{absent}'] = None; runpy.run_module('deploy.{platform}', run_name='__main__')"
    )
    command = [sys.executable, "-c", hidden]
    found = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == f"error: the package {absent} is missing: {installation}\n"


@pytest.mark.parametrize(("platform", "actions"), [("vertex", ACTIONS), ("sagemaker", SAGEMAKER_ACTIONS)])
def test_help_needs_the_standard_library_only(platform: str, actions: Mapping[str, object]) -> None:
    for arguments in ([], *([action] for action in actions)):
        command = [sys.executable, "-S", "-m", f"deploy.{platform}", *arguments, "--help"]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert (found.returncode, found.stderr) == (0, "")
        assert found.stdout.startswith(f"usage: python -m deploy.{platform}")


# --- settings that are refused before any call


DRY_UPLOAD = ("upload", "--dry-run", "--model-id=digits", "--image=image", "--artifact-uri=gs://zoo/digits")
DRY_DEPLOY = ("deploy", "--dry-run", "--model=digits", "--endpoint=digits", MACHINE)
NEW = (*DRY_DEPLOY, "--ttl=4h")
DRY_BATCH = ("batch", "--dry-run", "--model=digits", "--name=n", MACHINE, "--output=gs://zoo/out")
DRY_SHIFT = ("shift", "--dry-run", "--endpoint=digits")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((*DRY_UPLOAD, "--no-default"), "the first version of a model is its default"),
        ((*DRY_UPLOAD, "--model-id=a.b"), "not 'a.b'"),
        ((*DRY_UPLOAD, "--env=A"), "it takes NAME=VALUE, not 'A'"),
        ((*DRY_UPLOAD, "--env=A=1", "--env=A=2"), "'A' is given twice"),
        ((*DRY_UPLOAD, "--env=AIP_MODE=x"), "the platform reserves names that begin with AIP_"),
        ((*DRY_UPLOAD, "--env=TRIDENT_LOG_VERBSE=1"), "unknown variable; did you mean TRIDENT_LOG_VERBOSE?"),
        ((*DRY_UPLOAD, "--env=TRIDNET_LOG_VERBOSE=1"), "did you mean TRIDENT_LOG_VERBOSE?"),
        ((*DRY_UPLOAD, "--env=TRIDENT_LOG_VERBOSE=much"), "TRIDENT_LOG_VERBOSE"),
        ((*DRY_UPLOAD, "--", "--vertex-ai-defalt-model=x"), "did you mean --vertex-ai-default-model?"),
        ((*DRY_UPLOAD, "--", "--vertex-ai-payload=v3"), "--vertex-ai-payload"),
        ((*DRY_UPLOAD, "--env=PORT=9001", "--", "--vertex-ai-port=$(PORT)"), "but the server opens 9001"),
        ((*DRY_UPLOAD, "--startup-probe=udp:1"), "it takes http:/PATH, tcp:PORT or exec:COMMAND, not 'udp:1'"),
        ((*DRY_UPLOAD, "--startup-probe=tcp:1,often=2"), "unknown setting 'often'; expected one of period"),
        (DRY_UPLOAD[:-1], "--model-repository must be specified"),
        ((*DRY_DEPLOY, "--", "--log-verbose=1"), "only with upload"),
        ((*DRY_DEPLOY, "--new=shared"), "set --ttl=4h, or --ttl=none to keep it"),
        ((*DRY_DEPLOY, "--ttl=4h"), "it requires --new"),
        ((*DRY_DEPLOY, "--new=shared", "--ttl=soon"), "it takes 30m, 4h, 7d or the like, or none, not 'soon'"),
        ((*NEW, "--new=shared", "--inference-timeout=90"), "for a shared endpoint it is always 60 s"),
        ((*NEW, "--new=psc"), "a psc endpoint needs at least one"),
        ((*NEW, "--new=dedicated", "--allow-project=x"), "other kinds have none"),
        ((*DRY_DEPLOY, "--accelerator=NVIDIA_L5=1"), "'NVIDIA_L5=1' is not TYPE or TYPE=N; did you mean NVIDIA_L4?"),
        ((*DRY_UPLOAD, "--grpc-port=8001"), "the container needs the argument --allow-grpc=true"),
        ((*DRY_UPLOAD, "--grpc-port=1", "--", "--allow-grpc=true"), "it is 1, but the server opens 8001"),
        ((*DRY_DEPLOY, "--accelerator=NVIDIA_L4=none"), "'NVIDIA_L4=none' is not TYPE or TYPE=N"),
        ((*DRY_DEPLOY, "--autoscale=cpus=60"), "'cpus=60' is not one of cpu, accelerator, requests"),
        ((*DRY_DEPLOY, "--min-replicas=3", "--max-replicas=2"), "2 is less than 3"),
        ((*DRY_DEPLOY, "--model=a/b"), "it takes an id, or a name that begins with projects/my-project/"),
        ((*DRY_DEPLOY, "--model=digits@"), "not 'digits@'"),
        ((*DRY_SHIFT, "--traffic=1=50"), "the sum of the shares is 50 %, not 100"),
        ((*DRY_SHIFT, "--traffic=1=all"), "it takes DEPLOYED_ID=PERCENT, such as 1=90"),
        ((*DRY_BATCH, "--format=csv", "--input=gs://a", "--parameters={"), "it takes a JSON document"),
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


# --- the checks of a smoke test, and the address it calls


API = "https://us-central1-aiplatform.googleapis.com"
V2 = b'{"outputs": [{"name": "OUTPUT", "datatype": "FP32", "shape": [2], "data": [0, 1]}]}'
HEAD = V2.replace(b'"data": [0, 1]', b'"parameters": {"binary_data_size": 8}')
LENGTH = {"inference-header-content-length": str(len(HEAD))}
TENSOR = b"\0\0\0\0\0\0\x80\x3f"


def checks() -> dict[str, Check]:
    agreement = Agreement(2)
    return {form: check_answers(agreement, form) for form in Form} | {"metrics": check_metrics}


def test_answers_of_all_forms_agree() -> None:
    check = checks()
    told = [
        check["instances"](Reply(200, {}, b'{"predictions": [0, 1], "deployedModelId": "7"}')),
        check["v2"](Reply(200, {}, V2)),
        check["binary"](Reply(200, LENGTH, HEAD + TENSOR)),
    ]
    assert told == ["2 rows of 1 values"] * 3
    assert check["metrics"](Reply(200, {}, b"# HELP\nnv_inference_request_success 1\n")) == "2 lines"


@pytest.mark.parametrize(
    ("form", "reply", "fault"),
    [
        ("instances", Reply(503, {}, b'{"error": "loading"}'), 'status 503: {"error": "loading"}'),
        ("instances", Reply(200, {}, b'{"predictions": [1]}'), "1 rows, but the request has 2"),
        ("v2", Reply(200, {}, V2.replace(b"1]", b"2]")), "row 2, column 1 is 2, not 1"),
        ("v2", Reply(200, {}, b"[]"), "the answer cannot be read"),
        ("binary", Reply(200, {}, HEAD), "the answer cannot be read"),
        ("binary", Reply(200, LENGTH, HEAD + bytes(7)), "the answer cannot be read"),
        ("metrics", Reply(200, {}, b"up 1\n"), "the page has no nv_inference_request_success"),
    ],
)
def test_a_wrong_answer_fails_the_check(form: str, reply: Reply, fault: str) -> None:
    check = checks()
    if form != "instances":
        check["instances"](Reply(200, {}, b'{"predictions": [0, 1]}'))
    with pytest.raises(CallFailed) as caught:
        check[form](reply)
    assert fault in str(caught.value)


def test_address_depends_on_the_kind_of_endpoint() -> None:
    assert address_of(Endpoint(), API, "") == (API, False, False)
    dedicated = Endpoint(
        dedicated_endpoint_enabled=True, dedicated_endpoint_dns="e.us-central1-1.prediction.vertexai.goog"
    )
    assert address_of(dedicated, API, "") == ("https://e.us-central1-1.prediction.vertexai.goog", True, False)
    private = Endpoint(private_service_connect_config=PrivateServiceConnectConfig(enable_private_service_connect=True))
    assert address_of(private, API, "10.0.0.7") == ("https://10.0.0.7", True, True)
    with pytest.raises(CallFailed, match="--address=HOST"):
        address_of(private, API, "")


# --- the commands of docs/vertex.md section Deploy


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
