"""`shift`: splits an endpoint's traffic between its deployed models and undeploys those without traffic.

Source: docs/spec/deploy.md section 5.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from google.cloud.aiplatform_v1 import (
    DeployedModel,
    Endpoint,
    GetEndpointRequest,
    UndeployModelRequest,
    UpdateEndpointRequest,
)
from google.protobuf.field_mask_pb2 import FieldMask

from deploy.vertex.options import pairs
from deploy.vertex.plan import Call, CheckFailed, Context, Steps
from trident.adapters.common.options import BadOption

_ALL = 100
_DRAIN_S = 60.0


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--endpoint", required=True, metavar="ID", help="the endpoint")
    parser.add_argument(
        "--traffic", action="append", required=True, metavar="DEPLOYED_ID=PERCENT", help="share of every deployed model"
    )
    parser.add_argument(
        "--keep", action="store_true", help="undeploy nothing, to be able to go back at the cost of the machines"
    )
    parser.add_argument(
        "--drain-secs",
        type=float,
        default=_DRAIN_S,
        metavar="S",
        help=f"wait before undeploying; default: {_DRAIN_S:g}",
    )


def steps(options: Namespace, at: Context) -> Steps:
    """The plan that shifts traffic. Raises BadOption."""
    split = read_split(options.traffic)
    name = at.place.endpoint(options.endpoint)
    there = Endpoint(
        name=name, deployed_models=[DeployedModel(id=each) for each in split], traffic_split={next(iter(split)): _ALL}
    )
    yield Call(
        title=f"get {options.endpoint}",
        request=GetEndpointRequest(name=name),
        stand_in=there,
        report=lambda endpoint: _checked(endpoint, split),
    )
    yield Call(
        title=f"shift the traffic to {text_of(split)}",
        request=UpdateEndpointRequest(
            endpoint=Endpoint(name=name, traffic_split=split), update_mask=FieldMask(paths=["traffic_split"])
        ),
        stand_in=there,
    )
    wait_s = options.drain_secs
    for identity in () if options.keep else idle(split):
        yield Call(
            title=f"undeploy {identity}, which gets no more traffic",
            request=UndeployModelRequest(endpoint=name, deployed_model_id=identity),
            after_s=wait_s,
        )
        wait_s = 0.0


def read_split(texts: list[str]) -> dict[str, int]:
    """The percentage of each deployed model, by its id; the sum is 100. Raises BadOption."""
    found = {}
    for identity, text in pairs(texts, "--traffic").items():
        if not identity.isdecimal() or not text.isdecimal() or int(text) > _ALL:
            raise BadOption.of("--traffic", f"it takes DEPLOYED_ID=PERCENT, such as 1=90, not '{identity}={text}'")
        found[identity] = int(text)
    if sum(found.values()) != _ALL:
        raise BadOption.of("--traffic", f"the sum of the shares is {sum(found.values())} %, not {_ALL}")
    return found


def idle(split: Mapping[str, int]) -> list[str]:
    """The ids of the models without traffic."""
    return [identity for identity, share in split.items() if not share]


def text_of(split: Mapping[str, int]) -> str:
    return ", ".join(f"{identity}={share} %" for identity, share in sorted(split.items()))


def _checked(endpoint: Endpoint, split: Mapping[str, int]) -> str:
    """The current split. Raises CheckFailed unless `split` names exactly the deployed models."""
    deployed = {model.id for model in endpoint.deployed_models}
    described = ", ".join(f"{model.id} ({model.display_name})" for model in endpoint.deployed_models) or "nothing"
    if unknown := [identity for identity in split if identity not in deployed]:
        raise CheckFailed(f"{unknown[0]} is not deployed there; deployed are: {described}")
    if missing := deployed - set(split):
        raise CheckFailed(
            f"--traffic does not name {sorted(missing)[0]}, which is also deployed there: give it a share or 0"
        )
    return f"now: {text_of(dict(endpoint.traffic_split)) or 'nothing'}"
