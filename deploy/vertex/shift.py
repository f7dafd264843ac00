"""`shift`: splits an endpoint's traffic between its deployed models and undeploys those without traffic.

Source: docs/spec/deploy.md section 5.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping

from google.cloud.aiplatform_v1 import Endpoint, GetEndpointRequest, UndeployModelRequest, UpdateEndpointRequest
from google.protobuf.field_mask_pb2 import FieldMask

from deploy.vertex.api import CallFailed, Vertex, pairs
from trident.adapters.common.options import BadOption


def act(vertex: Vertex, options: Namespace) -> None:
    split = _read_split(options.traffic)
    name = vertex.endpoint(options.endpoint)
    vertex.call(f"get {options.endpoint}", GetEndpointRequest(name=name), report=lambda found: _checked(found, split))
    endpoint = Endpoint(name=name, traffic_split=split)
    vertex.call(
        f"shift the traffic to {_text_of(split)}",
        UpdateEndpointRequest(endpoint=endpoint, update_mask=FieldMask(paths=["traffic_split"])),
    )
    wait_s = options.drain_secs
    for identity in () if options.keep else [identity for identity, share in split.items() if not share]:
        vertex.call(
            f"undeploy {identity}, which gets no more traffic",
            UndeployModelRequest(endpoint=name, deployed_model_id=identity),
            after_s=wait_s,
        )
        wait_s = 0.0


def _read_split(texts: list[str]) -> dict[str, int]:
    """The percentage of each deployed model, by its id; the sum is 100."""
    try:
        found = {identity: int(text) for identity, text in pairs(texts, "--traffic").items()}
    except ValueError:
        raise BadOption.of("--traffic", f"it takes DEPLOYED_ID=PERCENT, such as 1=90, not {texts}") from None
    if sum(found.values()) != 100:
        raise BadOption.of("--traffic", f"the sum of the shares is {sum(found.values())} %, not 100")
    return found


def _text_of(split: Mapping[str, int]) -> str:
    return ", ".join(f"{identity}={share} %" for identity, share in sorted(split.items()))


def _checked(endpoint: Endpoint, split: Mapping[str, int]) -> str:
    """The current split. Raises CallFailed unless `split` names exactly the deployed models."""
    deployed = {model.id for model in endpoint.deployed_models}
    described = ", ".join(f"{model.id} ({model.display_name})" for model in endpoint.deployed_models) or "nothing"
    if unknown := [identity for identity in split if identity not in deployed]:
        raise CallFailed(f"{unknown[0]} is not deployed there; deployed are: {described}")
    if missing := deployed - set(split):
        raise CallFailed(
            f"--traffic does not name {sorted(missing)[0]}, which is also deployed there: give it a share or 0"
        )
    return f"now: {_text_of(dict(endpoint.traffic_split)) or 'nothing'}"
