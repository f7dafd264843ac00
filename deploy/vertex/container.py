"""The container that the platform runs: image, arguments and variables, checked by the server's own settings.

Source: docs/spec/vertex.md sections A1 and A2.
"""

from __future__ import annotations

import difflib
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from google.cloud.aiplatform_v1 import (
    AcceleratorType,
    AutoscalingMetricSpec,
    BatchDedicatedResources,
    DedicatedResources,
    EnvVar,
    MachineSpec,
    Model,
    ModelContainerSpec,
    Port,
    UploadModelRequest,
    UploadModelResponse,
)
from google.protobuf.duration_pb2 import Duration

from deploy.vertex.options import labels, pairs, parse_probe
from deploy.vertex.plan import Call, Context, Steps, new_model_id
from trident.adapters.common.options import PREFIX, BadOption
from trident.app.emulators.vertex.container import (
    RESERVED_PREFIX,
    container_arguments,
    container_environment,
    platform_variables,
)
from trident.app.emulators.vertex.limits import Deployment
from trident.app.settings.reading import read_settings
from trident.app.settings.server import SERVER_OPTIONS, ServerSettings
from trident.app.settings.sources import nearest

_LONGEST_DEPLOYMENT_S = 7200
_EVERY_PATH = "/*"
_DEFAULT_PORT = 8080
# The similarity of two names that differ by a misspelling; equal names have 1.
_LIKE = 0.9
_PROBES = ("startup", "health", "liveness")


def add_container_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--image", required=True, metavar="URI", help="image in Artifact Registry, in the same location"
    )
    parser.add_argument("--artifact-uri", default="", metavar="GS_URI", help="the folder of one or several models")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the container")
    parser.add_argument(
        "--port", type=int, default=_DEFAULT_PORT, metavar="N", help="port of the container; default: 8080"
    )
    parser.add_argument(
        "--grpc-port", type=int, default=0, metavar="N", help="gRPC port of the container, for directRawPredict"
    )
    parser.add_argument(
        "--predict-route", default="", metavar="PATH", help="default: a route with the ids of the endpoint"
    )
    parser.add_argument("--health-route", default="", metavar="PATH", help="as --predict-route, for health")
    parser.add_argument(
        "--invoke-route-prefix", default="", metavar="/*", help="open every path instead of the predict route"
    )
    parser.add_argument("--shared-memory-mb", type=int, default=0, metavar="N", help="size of /dev/shm")
    parser.add_argument(
        "--deployment-timeout", type=int, default=0, metavar="S", help="seconds until the container must be ready"
    )
    for name in _PROBES:
        parser.add_argument(f"--{name}-probe", default="", metavar="PROBE", help="http:/PATH, tcp:PORT or exec:COMMAND")


def container_spec(options: Namespace) -> ModelContainerSpec:
    """The container of a model. Raises BadOption, also for settings that the server would refuse."""
    variables = pairs(options.env, "--env")
    _check_container(options)
    _check_server(options, variables)
    probes = {
        f"{name}_probe": parse_probe(text, f"--{name}-probe", options.port)
        for name in _PROBES
        if (text := getattr(options, f"{name}_probe"))
    }
    return ModelContainerSpec(
        image_uri=options.image,
        args=options.container_arguments,
        env=[EnvVar(name=name, value=value) for name, value in variables.items()],
        ports=[Port(container_port=options.port)],
        grpc_ports=[Port(container_port=options.grpc_port)] if options.grpc_port else [],
        predict_route=options.predict_route,
        health_route=options.health_route,
        invoke_route_prefix=options.invoke_route_prefix,
        shared_memory_size_mb=options.shared_memory_mb,
        deployment_timeout=Duration(seconds=options.deployment_timeout) if options.deployment_timeout else None,
        **probes,
    )


def _check_container(options: Namespace) -> None:
    if options.artifact_uri and not options.artifact_uri.startswith("gs://"):
        raise BadOption.of("--artifact-uri", f"it takes the gs:// address of a folder, not '{options.artifact_uri}'")
    if not 0 < options.port < 65536:
        raise BadOption.of("--port", f"{options.port} is not a port")
    if not 0 <= options.deployment_timeout <= _LONGEST_DEPLOYMENT_S:
        raise BadOption.of("--deployment-timeout", f"the platform waits at most {_LONGEST_DEPLOYMENT_S} s")
    prefix = options.invoke_route_prefix
    if prefix and prefix != _EVERY_PATH:
        raise BadOption.of("--invoke-route-prefix", f"the platform accepts only {_EVERY_PATH}, not '{prefix}'")
    if prefix and options.predict_route:
        raise BadOption.of("--invoke-route-prefix", "a model has a predict route or an invoke route prefix, not both")


def _check_server(options: Namespace, variables: Mapping[str, str]) -> None:
    _check_names(variables)
    settings = server_settings(
        options.container_arguments,
        variables,
        port=options.port,
        predict_route=options.predict_route,
        health_route=options.health_route,
        storage_uri=options.artifact_uri,
    )
    opened = settings.value("vertex_ai_port")
    if opened != options.port:
        raise BadOption.of("--port", f"it is {options.port}, but the server opens {opened}")
    grpc_port = settings.value("grpc_port") if settings.value("allow_grpc") else 0
    if options.grpc_port not in (0, grpc_port):
        cure = f"the server opens {grpc_port}" if grpc_port else "the container needs the argument --allow-grpc=true"
        raise BadOption.of("--grpc-port", f"it is {options.grpc_port}, but {cure}")


def _check_names(variables: Mapping[str, str]) -> None:
    """Check for misspelled prefixes; the server's settings check only variables with its prefix."""
    known = [variable for each in SERVER_OPTIONS.values() for variable in each.variables]
    for name in variables:
        if name.startswith(RESERVED_PREFIX):
            raise BadOption.of("--env", f"the platform reserves names that begin with {RESERVED_PREFIX}: '{name}'")
        meant = difflib.get_close_matches(name, known, n=1, cutoff=_LIKE)
        if meant and meant[0] != name and not name.startswith(PREFIX):
            raise BadOption.of("--env", f"the server does not know '{name}'; did you mean {meant[0]}?")


def server_settings(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    port: int = _DEFAULT_PORT,
    predict_route: str = "",
    health_route: str = "",
    storage_uri: str = "",
) -> ServerSettings:
    """The settings of the server in a container with these arguments and variables. Raises BadOption."""
    platform = platform_variables(Deployment(predict_route=predict_route, health_route=health_route), port, storage_uri)
    environment = container_environment({}, {}, platform, variables)
    return read_settings(container_arguments(arguments, platform, variables), environment)


# Source: docs/spec/deploy.md section 5; the names of the metrics are from the documentation of AutoscalingMetricSpec.


_ONLINE = "aiplatform.googleapis.com/prediction/online"
METRICS = {
    "cpu": f"{_ONLINE}/cpu/utilization",
    "accelerator": f"{_ONLINE}/accelerator/duty_cycle",
    "requests": f"{_ONLINE}/request_count",
}
_PERCENT = ("cpu", "accelerator")


def add_machine_options(parser: ArgumentParser, *, least: str) -> None:
    """Add the options; `least` is the flag for the initial number of machines."""
    parser.add_argument("--machine-type", required=True, metavar="TYPE", help="such as n1-standard-4 or g2-standard-4")
    parser.add_argument("--accelerator", default="", metavar="TYPE[=N]", help="such as NVIDIA_L4=1")
    parser.add_argument(
        least, type=int, default=1, metavar="N", dest="least", help="initial number of machines; default: 1"
    )
    parser.add_argument(
        "--max-replicas", type=int, metavar="N", help="largest number of machines; default: the initial number"
    )


def add_online_options(parser: ArgumentParser) -> None:
    parser.add_argument("--spot", action="store_true", help="cheaper machines that may be reclaimed at any time")
    parser.add_argument(
        "--autoscale",
        action="append",
        default=[],
        metavar="METRIC=TARGET",
        help=f"scaling target: {' or '.join(METRICS)}; in percent, or requests per minute",
    )


def dedicated_resources(options: Namespace) -> DedicatedResources:
    """The machines of a deployed model. Raises BadOption."""
    least, most = _replicas(options, "--min-replicas")
    return DedicatedResources(
        machine_spec=_machine(options),
        min_replica_count=least,
        max_replica_count=most,
        autoscaling_metric_specs=_targets(options),
        spot=options.spot,
    )


def batch_resources(options: Namespace) -> BatchDedicatedResources:
    """The machines of a batch prediction job. Raises BadOption."""
    least, most = _replicas(options, "--replicas")
    return BatchDedicatedResources(machine_spec=_machine(options), starting_replica_count=least, max_replica_count=most)


def _replicas(options: Namespace, flag: str) -> tuple[int, int]:
    least: int = options.least
    most: int = least if options.max_replicas is None else options.max_replicas
    if least < 1:
        raise BadOption.of(flag, "it takes 1 or more")
    if most < least:
        raise BadOption.of("--max-replicas", f"{most} is less than {flag}={least}")
    return least, most


def _machine(options: Namespace) -> MachineSpec:
    if not options.accelerator:
        return MachineSpec(machine_type=options.machine_type)
    name, _, count = options.accelerator.partition("=")
    if name not in AcceleratorType.__members__ or name == "ACCELERATOR_TYPE_UNSPECIFIED":
        found = nearest(name.upper(), list(AcceleratorType.__members__))
        raise BadOption.of("--accelerator", f"'{name}' is not a type of accelerator{found}")
    if count and not (count.isdecimal() and int(count)):
        raise BadOption.of("--accelerator", f"'{count}' is not a number of accelerators")
    return MachineSpec(
        machine_type=options.machine_type,
        accelerator_type=AcceleratorType.__members__[name],
        accelerator_count=int(count or 1),
    )


def _targets(options: Namespace) -> list[AutoscalingMetricSpec]:
    found = []
    for name, text in pairs(options.autoscale, "--autoscale").items():
        if name not in METRICS:
            raise BadOption.of("--autoscale", f"unknown metric '{name}'; expected one of {', '.join(METRICS)}")
        if not (text.isdecimal() and int(text)) or (name in _PERCENT and int(text) > 100):
            raise BadOption.of("--autoscale", f"'{text}' is not a target for {name}")
        if name == "accelerator" and not options.accelerator:
            raise BadOption.of("--autoscale", "accelerator needs --accelerator")
        found.append(AutoscalingMetricSpec(metric_name=METRICS[name], target=int(text)))
    return found


# Source: docs/spec/deploy.md section 5.


def add_options(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model-id", metavar="ID", help="the id of a new model")
    which.add_argument("--parent-model", metavar="ID", help="the model that gets a new version")
    parser.add_argument("--display-name", default="", metavar="TEXT", help="default: the id")
    parser.add_argument(
        "--alias", action="append", default=[], metavar="NAME", help="alias of the version, such as canary"
    )
    parser.add_argument("--no-default", action="store_true", help="keep the default version of the parent")
    parser.add_argument("--label", action="append", default=[], metavar="NAME=VALUE", help="label of the model")
    parser.add_argument(
        "--service-account", default="", metavar="EMAIL", help="identity that reads image and artifacts"
    )
    add_container_options(parser)


def steps(options: Namespace, at: Context) -> Steps:
    """The plan that uploads a model. Raises BadOption."""
    if options.no_default and not options.parent_model:
        raise BadOption.of("--no-default", "the first version of a model is its default")
    identity = options.parent_model or new_model_id(options.model_id)
    place = at.place
    model = Model(
        display_name=options.display_name or identity.rpartition("/")[2],
        artifact_uri=options.artifact_uri,
        container_spec=container_spec(options),
        version_aliases=[*options.alias, *(["default"] if options.parent_model and not options.no_default else [])],
        labels=labels(options.label),
    )
    parent_model = place.model(options.parent_model) if options.parent_model else ""
    request = UploadModelRequest(
        parent=place.name,
        parent_model=parent_model,
        model_id="" if parent_model else identity,
        model=model,
        service_account=options.service_account,
    )
    title = f"upload a version of {identity}" if parent_model else f"upload the model {identity}"
    name = parent_model or place.model(identity)
    yield Call(
        title=title,
        request=request,
        stand_in=UploadModelResponse(model=name, model_version_id="1"),
        report=_report,
    )


def _report(answer: Any) -> str:
    return f"--model={answer.model}@{answer.model_version_id}"
