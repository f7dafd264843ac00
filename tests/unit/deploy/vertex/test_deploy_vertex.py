"""`python -m deploy.vertex` with the real SDK and a server that speaks the API's messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from google.cloud.aiplatform_v1 import AcceleratorType, BatchPredictionJob, JobState, Model

from tests.unit.deploy.vertex.vertex_command import command
from tests.unit.deploy.vertex.vertex_platform import PLACE, VertexPlatform

IMAGE = "us-central1-docker.pkg.dev/my-project/trident/trident:1"
MACHINE = "--machine-type=n1-standard-4"
UPLOAD = (f"--image={IMAGE}", "--artifact-uri=gs://zoo/digits")
DIGITS = f"{PLACE}/models/digits"


@pytest.fixture
def platform() -> Iterator[VertexPlatform]:
    with VertexPlatform() as made:
        yield made


def test_upload_sends_the_whole_container(platform: VertexPlatform, tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{"UploadModel": {"model": {"containerSpec": {"sharedMemorySizeMb": "256"}}}}')
    found = command(
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
        platform=platform,
    )
    assert (found.status, found.errors) == (0, "")
    assert f"--model={DIGITS}@1" in found.out
    ((_, request),) = platform.calls
    assert (request.parent, request.model_id, request.parent_model) == (PLACE, "digits", "")
    assert request.service_account == "reader@my-project.iam.gserviceaccount.com"
    model, container = request.model, request.model.container_spec
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
def test_new_version_is_the_default_unless_told_otherwise(
    more: list[str], aliases: list[str], platform: VertexPlatform
) -> None:
    platform.models[DIGITS] = [Model()]
    found = command("upload", "--parent-model=digits", "--alias=canary", *UPLOAD, *more, platform=platform)
    assert f"--model={DIGITS}@2" in found.out
    request = platform.calls[0][1]
    assert (request.parent_model, request.model_id) == (DIGITS, "")
    assert list(request.model.version_aliases) == aliases


def test_upload_waits_for_the_operation(platform: VertexPlatform) -> None:
    platform.pending = 1
    found = command("upload", "--model-id=digits", *UPLOAD, platform=platform)
    assert (found.status, platform.asked) == (0, ["upload_model", "get_operation"]), found.errors


def test_deploy_creates_a_dedicated_endpoint(platform: VertexPlatform) -> None:
    found = command(
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
        "--autoscale=cpu=70",
        "--autoscale=accelerator=60",
        "--autoscale=requests=900",
        "--service-account=server@my-project.iam.gserviceaccount.com",
        "--spot",
        "--deployed-model-id=17",
        platform=platform,
    )
    assert (found.status, platform.asked) == (0, ["create_endpoint", "deploy_model"])
    assert "delete --expired removes it after 20261122t160000z" in found.out
    assert "the deployed model's id is 17" in found.out
    endpoint, request = platform.endpoints[f"{PLACE}/endpoints/digits"], platform.calls[1][1]
    assert endpoint.dedicated_endpoint_enabled
    assert endpoint.client_connection_config.inference_timeout == timedelta(seconds=300)
    assert dict(endpoint.labels) == {"team": "vision", "trident-expires": "20261122t160000z"}
    assert dict(endpoint.traffic_split) == {"17": 100}
    model, resources = request.deployed_model, request.deployed_model.dedicated_resources
    assert (model.model, model.display_name) == (f"{DIGITS}@canary", "digits-canary")
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


def test_deploy_creates_a_private_endpoint(platform: VertexPlatform) -> None:
    more = ["--new=psc", "--allow-project=one", "--allow-project=other", "--ttl=none"]
    found = command("deploy", "--model=digits", "--endpoint=digits", *more, MACHINE, platform=platform)
    assert found.status == 0, found.errors
    assert "it stays until it is deleted" in found.out
    endpoint = platform.endpoints[f"{PLACE}/endpoints/digits"]
    assert endpoint.private_service_connect_config.enable_private_service_connect
    assert list(endpoint.private_service_connect_config.project_allowlist) == ["one", "other"]
    assert not endpoint.dedicated_endpoint_enabled
    assert dict(endpoint.labels) == {}


@pytest.mark.parametrize(("more", "split"), [([], {"1": 100}), (["--all-traffic"], {"2": 100})])
def test_additional_model_gets_no_traffic_unless_it_gets_all(
    more: list[str], split: dict[str, int], platform: VertexPlatform
) -> None:
    name = platform.deployed("digits", {"1": 100})
    found = command(
        "deploy", "--model=digits", "--endpoint=digits", "--deployed-model-id=2", MACHINE, *more, platform=platform
    )
    assert (found.status, platform.asked) == (0, ["deploy_model"])
    assert dict(platform.endpoints[name].traffic_split) == split


def test_shift_moves_all_traffic_from_a_canary(platform: VertexPlatform) -> None:
    name = platform.deployed("digits", {"1": 100, "2": 0})
    canary = command("shift", "--endpoint=digits", "--traffic=1=90", "--traffic=2=10", platform=platform)
    assert (canary.status, canary.waits) == (0, [])
    assert dict(platform.endpoints[name].traffic_split) == {"1": 90, "2": 10}

    kept = command("shift", "--endpoint=digits", "--traffic=1=0", "--traffic=2=100", "--keep", platform=platform)
    assert "now: 1=90 %, 2=10 %" in kept.out
    assert len(platform.endpoints[name].deployed_models) == 2

    full = command("shift", "--endpoint=digits", "--traffic=1=0", "--traffic=2=100", platform=platform)
    assert (full.status, full.waits) == (0, [60.0])
    assert [model.id for model in platform.endpoints[name].deployed_models] == ["2"]
    assert dict(platform.endpoints[name].traffic_split) == {"2": 100}


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        (["3=100", "1=0"], "3 is not deployed there; deployed are: 1 (model 1), 2 (model 2)"),
        (["1=100"], "--traffic does not name 2, which is also deployed there: give it a share or 0"),
    ],
)
def test_shift_that_does_not_match_the_endpoint_changes_nothing(
    shares: list[str], text: str, platform: VertexPlatform
) -> None:
    platform.deployed("digits", {"1": 100, "2": 0})
    shared = [f"--traffic={share}" for share in shares]
    found = command("shift", "--endpoint=digits", *shared, platform=platform)
    assert (found.status, platform.asked) == (1, ["get_endpoint"])
    assert text in found.errors


def test_refused_call_ends_the_plan_with_a_hint(platform: VertexPlatform) -> None:
    platform.failing = {"create_endpoint"}
    found = command(
        "deploy", "--model=digits", "--endpoint=digits", "--new=shared", "--ttl=1d", MACHINE, platform=platform
    )
    assert (found.status, platform.asked) == (1, [])
    assert "no right to create_endpoint" in found.errors
    assert "roles/aiplatform.user" in found.errors


def test_failed_deployment_has_its_reason(platform: VertexPlatform) -> None:
    platform.deployed("digits", {})
    platform.pending, platform.fault = 1, "Model server exited unexpectedly"
    found = command("deploy", "--model=digits", "--endpoint=digits", MACHINE, platform=platform)
    assert (found.status, platform.asked) == (1, ["deploy_model", "get_operation"])
    assert "Model server exited unexpectedly" in found.errors


def test_delete_undeploys_everything_first(platform: VertexPlatform) -> None:
    platform.deployed("digits", {"1": 60, "2": 40, "3": 0})
    platform.models[DIGITS] = [Model()]
    found = command("delete", "--endpoint=digits", "--model=digits", "--model=other@2", platform=platform)
    assert (found.status, platform.endpoints, platform.models) == (0, {}, {}), found.out
    undeployed = [message.deployed_model_id for name, message in platform.calls if name == "undeploy_model"]
    assert undeployed == ["3", "2", "1"]
    assert platform.asked[-3:] == ["delete_endpoint", "delete_model", "delete_model_version"]
    assert platform.calls[-1][1] == f"{PLACE}/models/other@2"


def test_delete_continues_after_failures(platform: VertexPlatform) -> None:
    platform.deployed("one", {"1": 100})
    platform.models[DIGITS] = [Model()]
    platform.failing = {"undeploy_model"}
    found = command("delete", "--endpoint=gone", "--endpoint=one", "--model=digits", platform=platform)
    assert (found.status, platform.models) == (1, {})
    assert "it no longer exists" in found.out
    assert found.out.count("FAILED") == 2  # to undeploy, and therefore to delete
    assert "has deployed models" in found.out


def test_delete_expired_removes_only_expired_endpoints(platform: VertexPlatform) -> None:
    platform.deployed("over", {"1": 100}, trident_expires="20261122t115959z")
    platform.deployed("later", {"1": 100}, trident_expires="20261122t120001z")
    platform.deployed("now", {}, trident_expires="20261122t120000z")
    platform.deployed("strange", {"1": 100}, trident_expires="tomorrow")
    platform.deployed("kept", {"1": 100})
    found = command("delete", "--expired", platform=platform)
    assert found.status == 0, found.out
    assert [name.rpartition("/")[2] for name in platform.endpoints] == ["later", "strange", "kept"]
    assert "stays: strange, whose label trident-expires is 'tomorrow', which is not a time" in found.out
    assert platform.asked[:4] == ["list_endpoints"] * 4  # a page for each


def job(state: int, predicted: int, failed: int, **more: object) -> BatchPredictionJob:
    stats = {"successful_count": predicted, "failed_count": failed}
    return BatchPredictionJob(state=state, completion_stats=stats, **more)


def test_batch_job_is_followed_to_its_end(platform: VertexPlatform) -> None:
    output = {"gcs_output_directory": "gs://zoo/out/prediction-digits"}
    platform.jobs = [
        job(JobState.JOB_STATE_RUNNING, 3, 0),
        job(JobState.JOB_STATE_SUCCEEDED, 10, 0, output_info=output),
    ]
    found = command(
        "batch",
        "--model=digits@2",
        "--name=night",
        "--input=gs://zoo/in/*.jsonl",
        "--output=gs://zoo/out",
        "--format=jsonl",
        "--instance-type=object",
        "--key-field=id",
        "--included-fields=INPUT,id",
        '--parameters={"outputs": ["OUTPUT"]}',
        "--batch-size=16",
        MACHINE,
        "--replicas=2",
        "--max-replicas=4",
        "--wait",
        platform=platform,
    )
    assert (found.status, found.waits) == (0, [30.0, 30.0]), found.errors
    assert "running: 3 predicted, 0 failed" in found.out
    assert "gs://zoo/out/prediction-digits" in found.out
    assert platform.asked == ["create_job", "get_job", "get_job"]
    sent = platform.calls[0][1].batch_prediction_job
    assert (sent.display_name, sent.model) == ("night", f"{DIGITS}@2")
    assert (sent.input_config.instances_format, list(sent.input_config.gcs_source.uris)) == (
        "jsonl",
        ["gs://zoo/in/*.jsonl"],
    )
    assert sent.output_config.gcs_destination.output_uri_prefix == "gs://zoo/out"
    config = sent.instance_config
    assert (config.instance_type, config.key_field, list(config.included_fields)) == ("object", "id", ["INPUT", "id"])
    assert dict(sent.model_parameters) == {"outputs": ["OUTPUT"]}
    assert sent.manual_batch_tuning_parameters.batch_size == 16
    machines = sent.dedicated_resources
    assert (machines.starting_replica_count, machines.max_replica_count) == (2, 4)


def test_failed_batch_job_has_its_reason(platform: VertexPlatform) -> None:
    platform.jobs = [job(JobState.JOB_STATE_FAILED, 1, 9, error={"code": 3, "message": "no such file"})]
    arguments = ["--model=d", "--name=n", "--input=bq://p.d.t", "--output=bq://p.d", "--format=bigquery", MACHINE]
    found = command("batch", *arguments, "--wait", platform=platform)
    assert found.status == 1
    assert found.errors == "error: failed: 1 predicted, 9 failed\nno such file\n"
    sent = platform.calls[0][1].batch_prediction_job
    assert sent.input_config.bigquery_source.input_uri == "bq://p.d.t"
    assert sent.output_config.bigquery_destination.output_uri == "bq://p.d"


def test_batch_job_is_not_awaited_without_the_option(platform: VertexPlatform) -> None:
    arguments = ["--model=d", "--name=n", "--input=gs://b/l.txt", "--output=gs://b/o", "--format=file-list", MACHINE]
    found = command("batch", *arguments, platform=platform)
    assert (found.status, platform.asked) == (0, ["create_job"])
    assert f"{PLACE}/batchPredictionJobs/7" in found.out


def test_unreachable_platform_is_one_error() -> None:
    found = command("delete", "--model=digits")
    assert found.status == 1
    assert "FAILED" in found.out
    assert "Traceback" not in found.out + found.errors
