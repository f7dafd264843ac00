"""A new endpoint: shared, dedicated, or private by Private Service Connect.

Source: docs/spec/vertex.md section A4.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from enum import StrEnum

from google.cloud.aiplatform_v1 import (
    ClientConnectionConfig,
    CreateEndpointRequest,
    Endpoint,
    PrivateServiceConnectConfig,
)
from google.protobuf.duration_pb2 import Duration

from app.settings.option import BadOption
from deploy.vertex.place import Place, new_endpoint_id

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
