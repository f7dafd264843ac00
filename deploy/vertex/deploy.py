"""`deploy`: puts a model on machines behind an endpoint.

Source: docs/spec/deploy.md section 5.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from google.cloud.aiplatform_v1 import (
    ClientConnectionConfig,
    CreateEndpointRequest,
    DeployedModel,
    DeployModelRequest,
    DeployModelResponse,
    Endpoint,
    PrivateServiceConnectConfig,
)
from google.protobuf.duration_pb2 import Duration

from deploy.vertex.container import add_machine_options, add_online_options, dedicated_resources
from deploy.vertex.options import LABEL, expiry_labels, labels, parse_ttl
from deploy.vertex.plan import Call, Context, Place, Steps, new_endpoint_id
from trident.adapters.common.options import BadOption

_LONGEST_INFERENCE_S = 3600


class EndpointKind(StrEnum):
    SHARED = "shared"
    DEDICATED = "dedicated"
    PRIVATE = "psc"


def add_endpoint_options(parser: ArgumentParser) -> None:
    parser.add_argument("--endpoint", required=True, metavar="ID", help="the endpoint; with --new its id")
    parser.add_argument("--new", choices=[*EndpointKind], help="create an endpoint of this kind first")
    parser.add_argument("--ttl", metavar="SPAN", help="lifetime of a new endpoint: 4h, 7d, or none")
    parser.add_argument("--inference-timeout", type=int, default=0, metavar="S", help="time limit of a call in seconds")
    parser.add_argument(
        "--allow-project", action="append", default=[], metavar="ID", help="project that may connect by psc"
    )
    parser.add_argument("--label", action="append", default=[], metavar="NAME=VALUE", help="label of a new endpoint")


def check_endpoint_options(options: Namespace) -> None:
    """Raise BadOption for contradictory options."""
    kind = options.new
    if kind is None:
        of_new = {
            "--ttl": options.ttl,
            "--inference-timeout": options.inference_timeout,
            "--allow-project": options.allow_project,
            "--label": options.label,
        }
        for flag, value in of_new.items():
            if value:
                raise BadOption.of(flag, "it requires --new: an existing endpoint is not changed")
        return
    if options.ttl is None:
        raise BadOption("A new endpoint costs money until it is deleted: set --ttl=4h, or --ttl=none to keep it")
    if (kind == EndpointKind.PRIVATE) != bool(options.allow_project):
        raise BadOption.of("--allow-project", "a psc endpoint needs at least one, and other kinds have none")
    if options.inference_timeout and kind == EndpointKind.SHARED:
        raise BadOption.of("--inference-timeout", "for a shared endpoint it is always 60 s")
    if not 0 <= options.inference_timeout <= _LONGEST_INFERENCE_S:
        raise BadOption.of("--inference-timeout", f"the platform waits at most {_LONGEST_INFERENCE_S} s")


def create_request(options: Namespace, place: Place, labels: Mapping[str, str]) -> CreateEndpointRequest:
    """The request for a new endpoint. Raises BadOption."""
    identity = new_endpoint_id(options.endpoint)
    kind, timeout = options.new, options.inference_timeout
    psc = PrivateServiceConnectConfig(enable_private_service_connect=True, project_allowlist=options.allow_project)
    endpoint = Endpoint(
        display_name=identity,
        labels=labels,
        dedicated_endpoint_enabled=kind == EndpointKind.DEDICATED,
        private_service_connect_config=psc if kind == EndpointKind.PRIVATE else None,
        client_connection_config=(
            ClientConnectionConfig(inference_timeout=Duration(seconds=timeout)) if timeout else None
        ),
    )
    return CreateEndpointRequest(parent=place.name, endpoint=endpoint, endpoint_id=identity)


# The API's id for the model that is being deployed.
_THIS = "0"
_DEPLOYED_ID = re.compile(r"[1-9][0-9]{0,9}")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="ID[@VERSION]", help="the model; its default version")
    add_endpoint_options(parser)
    parser.add_argument(
        "--deployed-model-id", default="", metavar="N", help="up to 10 digits; default: the platform chooses"
    )
    parser.add_argument("--display-name", default="", metavar="TEXT", help="name of the deployed model")
    parser.add_argument("--all-traffic", action="store_true", help="move all traffic at once; implied by --new")
    parser.add_argument("--service-account", default="", metavar="EMAIL", help="identity of the container")
    parser.add_argument("--access-logging", action="store_true", help="log each request, which costs money")
    add_machine_options(parser, least="--min-replicas")
    add_online_options(parser)


def steps(options: Namespace, at: Context) -> Steps:
    """The plan that deploys a model. Raises BadOption."""
    check_endpoint_options(options)
    request = _deploy_request(options, at.place)
    if options.new:
        ttl = _ttl(options.ttl)
        create = create_request(options, at.place, {**labels(options.label), **expiry_labels(ttl, at.now)})
        yield Call(
            title=f"create the {options.new} endpoint {options.endpoint}",
            request=create,
            stand_in=Endpoint(name=request.endpoint),
            report=lambda answer: _endpoint_report(answer, create.endpoint),
        )
    yield Call(
        title=f"deploy {options.model} to {options.endpoint}, which takes minutes",
        request=request,
        stand_in=DeployModelResponse(deployed_model=DeployedModel(id=options.deployed_model_id or "1")),
        report=_deployed_report,
    )


def _deploy_request(options: Namespace, place: Place) -> DeployModelRequest:
    identity = options.deployed_model_id
    if identity and not _DEPLOYED_ID.fullmatch(identity):
        raise BadOption.of("--deployed-model-id", f"it takes up to 10 digits, the first not 0, not '{identity}'")
    model = place.model(options.model)
    return DeployModelRequest(
        endpoint=place.endpoint(options.endpoint),
        deployed_model=DeployedModel(
            id=identity,
            model=model,
            display_name=options.display_name or model.rpartition("/")[2].replace("@", "-"),
            dedicated_resources=dedicated_resources(options),
            service_account=options.service_account,
            enable_access_logging=options.access_logging,
        ),
        # Without a split the traffic of the other deployed models does not change.
        traffic_split={_THIS: 100} if options.new or options.all_traffic else {},
    )


def _ttl(text: str) -> Any:
    try:
        return parse_ttl(text)
    except ValueError as error:
        raise BadOption.of("--ttl", str(error)) from None


def _endpoint_report(answer: Endpoint, asked: Endpoint) -> str:
    until = asked.labels.get(LABEL)
    limit = f"delete --expired removes it after {until}" if until else "it stays until it is deleted"
    return f"--endpoint={answer.name}\n{limit}"


def _deployed_report(answer: DeployModelResponse) -> str:
    return f"the deployed model's id is {answer.deployed_model.id}"
