"""`deploy`: puts a model on machines behind an endpoint.

Source: docs/spec/deploy.md section 5; the names of the metrics are from the documentation of AutoscalingMetricSpec.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from google.cloud.aiplatform_v1 import (
    AcceleratorType,
    AutoscalingMetricSpec,
    ClientConnectionConfig,
    CreateEndpointRequest,
    DedicatedResources,
    DeployedModel,
    DeployModelRequest,
    DeployModelResponse,
    Endpoint,
    MachineSpec,
    PrivateServiceConnectConfig,
)
from google.protobuf.duration_pb2 import Duration

from deploy.vertex.api import Vertex, pairs
from deploy.vertex.options import METRICS
from trident.adapters.common.options import BadOption
from trident.app.settings.reading import nearest

# The API's id for the model that is being deployed.
_THIS = "0"


def act(vertex: Vertex, options: Namespace) -> None:
    _check_endpoint_options(options)
    name, model = vertex.endpoint(options.endpoint), vertex.model(options.model)
    least, most = replicas(options)
    request = DeployModelRequest(
        endpoint=name,
        deployed_model=DeployedModel(
            id=options.deployed_model_id,
            model=model,
            display_name=model.rpartition("/")[2].replace("@", "-"),
            dedicated_resources=DedicatedResources(
                machine_spec=machine(options),
                min_replica_count=least,
                max_replica_count=most,
                autoscaling_metric_specs=_targets(options),
                spot=options.spot,
            ),
            service_account=options.service_account,
        ),
        # Without a split the traffic of the other deployed models does not change.
        traffic_split={_THIS: 100} if options.new or options.all_traffic else {},
    )
    if options.new:
        _create_endpoint(vertex, options, name)
    vertex.call(
        f"deploy {options.model} to {options.endpoint}, which takes minutes",
        request,
        stand_in=DeployModelResponse(deployed_model=DeployedModel(id=options.deployed_model_id or "1")),
        report=lambda answer: f"the deployed model's id is {answer.deployed_model.id}",
    )


def _check_endpoint_options(options: Namespace) -> None:
    """Raise BadOption for contradictory options."""
    if options.new is None:
        for flag in ("--ttl", "--inference-timeout", "--allow-project", "--label"):
            if getattr(options, flag[2:].replace("-", "_")):
                raise BadOption.of(flag, "it requires --new: an existing endpoint is not changed")
    elif options.ttl is None:
        raise BadOption("A new endpoint costs money until it is deleted: set --ttl=4h, or --ttl=none to keep it")
    elif (options.new == "psc") != bool(options.allow_project):
        raise BadOption.of("--allow-project", "a psc endpoint needs at least one, and other kinds have none")
    elif options.inference_timeout and options.new == "shared":
        raise BadOption.of("--inference-timeout", "for a shared endpoint it is always 60 s")


def _create_endpoint(vertex: Vertex, options: Namespace, name: str) -> None:
    kind, timeout = options.new, options.inference_timeout
    labels = {**pairs(options.label, "--label"), **expiry_labels(_ttl(options.ttl), vertex.now)}
    psc = PrivateServiceConnectConfig(enable_private_service_connect=True, project_allowlist=options.allow_project)
    endpoint = Endpoint(
        display_name=options.endpoint,
        labels=labels,
        dedicated_endpoint_enabled=kind == "dedicated",
        private_service_connect_config=psc if kind == "psc" else None,
        client_connection_config=(
            ClientConnectionConfig(inference_timeout=Duration(seconds=timeout)) if timeout else None
        ),
    )
    until = labels.get(LABEL)
    limit = f"delete --expired removes it after {until}" if until else "it stays until it is deleted"
    vertex.call(
        f"create the {kind} endpoint {options.endpoint}",
        CreateEndpointRequest(parent=vertex.place, endpoint=endpoint, endpoint_id=options.endpoint),
        stand_in=Endpoint(name=name),
        report=lambda answer: f"--endpoint={answer.name}\n{limit}",
    )


# The machines


def replicas(options: Namespace) -> tuple[int, int]:
    """The least and the largest number of machines."""
    most: int = options.least if options.max_replicas is None else options.max_replicas
    if most < options.least:
        raise BadOption.of("--max-replicas", f"{most} is less than {options.least}")
    return options.least, most


def machine(options: Namespace) -> MachineSpec:
    if not options.accelerator:
        return MachineSpec(machine_type=options.machine_type)
    name, _, count = options.accelerator.partition("=")
    if name not in AcceleratorType.__members__ or not (count or "1").isdecimal():
        found = nearest(name.upper(), list(AcceleratorType.__members__))
        raise BadOption.of("--accelerator", f"'{options.accelerator}' is not TYPE or TYPE=N{found}")
    kind = AcceleratorType.__members__[name]
    return MachineSpec(machine_type=options.machine_type, accelerator_type=kind, accelerator_count=int(count or 1))


def _targets(options: Namespace) -> list[AutoscalingMetricSpec]:
    found = []
    for name, text in pairs(options.autoscale, "--autoscale").items():
        if name not in METRICS or not text.isdecimal():
            raise BadOption.of("--autoscale", f"'{name}={text}' is not one of {', '.join(METRICS)}, and a number")
        found.append(AutoscalingMetricSpec(metric_name=METRICS[name], target=int(text)))
    return found


# The end of an endpoint's life is in a label.

LABEL = "trident-expires"
# Labels allow only lower case.
_FORM = "%Y%m%dt%H%M%Sz"
_SPAN = re.compile(r"([1-9]\d{0,3})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def _ttl(text: str) -> timedelta | None:
    """The duration of `30m`, `4h` or `7d`; None for `none`."""
    if text == "none":
        return None
    found = _SPAN.fullmatch(text)
    if found is None:
        raise BadOption.of("--ttl", f"it takes 30m, 4h, 7d or the like, or none, not '{text}'")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def expiry_labels(ttl: timedelta | None, now: datetime) -> dict[str, str]:
    """The label for an expiry `ttl` after `now`; empty without an expiry."""
    return {} if ttl is None else {LABEL: (now + ttl).astimezone(UTC).strftime(_FORM)}


def expiry_of(labels: Mapping[str, str]) -> datetime:
    """The time in the label. Raises ValueError for a malformed or missing one."""
    return datetime.strptime(labels.get(LABEL, ""), _FORM).replace(tzinfo=UTC)
