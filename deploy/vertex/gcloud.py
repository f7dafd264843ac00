"""The calls as shell commands: `gcloud` if its flags cover the whole call, otherwise `curl`.

Source: docs/spec/deploy.md section 5; `gcloud ai --help`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deploy.vertex.container import METRICS
from deploy.vertex.plan import Call, EndpointCall, Place

_TOKEN = "Authorization: Bearer $(gcloud auth print-access-token)"
# gcloud's names of the scaling metrics.
_SCALED_BY = {METRICS["cpu"]: "cpu-usage", METRICS["accelerator"]: "gpu-duty-cycle"}
_SEPARATORS = ",;|#!~"
# Longer bodies are impractical on a command line.
_LONGEST_BODY = 20_000
_SECONDS = re.compile(r"(\d+)s")


class _Unsaid(Exception):
    """gcloud has no flag for a part of the call."""


def shell_command(call: Call, place: Place, api: str) -> str:
    """The command, quoted for a shell; a comment if no command exists. `api` is the address with its scheme."""
    if isinstance(call, EndpointCall):
        return _curl_through(call)
    try:
        words = ["ai", *_words(*_GCLOUD[call.rpc], call.document())]
    except (_Unsaid, KeyError):
        return _curl(call, api)
    return shlex.join(["gcloud", *words, f"--project={place.project}", f"--region={place.location}"])


def _words(command: str, flags: Mapping[str, tuple[str, Form]], document: dict[str, Any]) -> list[str]:
    """The words of a command. Every member of the message must be said, or be one that gcloud needs no word for."""
    words = command.split()
    for path, (flag, form) in flags.items():
        value = _take(document, path)
        if value not in ("", None, [], {}):
            words += form(f"--{flag}" if flag else "", value)
    if _has_members(document):
        raise _Unsaid
    return words


def _take(document: dict[str, Any], path: str) -> Any:
    """Remove a member, whose path has dots, and return it."""
    *outer, name = path.split(".")
    for each in outer:
        document = document.get(each, {})
    return document.pop(name, None)


def _has_members(document: Mapping[str, Any]) -> bool:
    return any(_has_members(value) if isinstance(value, dict) else True for value in document.values())


Form = Callable[[str, Any], list[str]]
"""The words for a flag and its value."""


def _plain(flag: str, value: Any) -> list[str]:
    return [f"{flag}={value}"]


def _unsaid(flag: str, value: Any) -> list[str]:
    return []


def _alone(flag: str, value: Any) -> list[str]:
    return [flag]


def _last(flag: str, value: str) -> list[str]:
    """The last part of a resource name; without a flag a word of its own."""
    name = value.rpartition("/")[2]
    return [f"{flag}={name}" if flag else name]


def _last_then_flag(flag: str, value: str) -> list[str]:
    return [*_last("", value), flag]


def _listed(flag: str, values: Sequence[str]) -> list[str]:
    """A flag with a list. gcloud splits at commas unless the value begins with another separator."""
    for separator in _SEPARATORS:
        if not any(separator in value for value in values):
            start = "" if separator == "," and not values[0].startswith("^") else f"^{separator}^"
            return [f"{flag}={start}{separator.join(values)}"]
    raise _Unsaid


def _mapped(flag: str, values: Mapping[str, Any]) -> list[str]:
    return _listed(flag, [f"{key}={value}" for key, value in values.items()])


def _seconds(flag: str, text: str) -> list[str]:
    found = _SECONDS.fullmatch(text)
    if found is None:
        raise _Unsaid
    return [f"{flag}={found[1]}"]


def _variables(flag: str, values: Sequence[Mapping[str, str]]) -> list[str]:
    return _mapped(flag, {each["name"]: each.get("value", "") for each in values})


def _ports(flag: str, values: Sequence[Mapping[str, int]]) -> list[str]:
    return _listed(flag, [str(each["containerPort"]) for each in values])


def _machine(flag: str, machine: Mapping[str, Any]) -> list[str]:
    rest = dict(machine)
    words = [f"{flag}={rest.pop('machineType')}"]
    if "acceleratorType" in rest:
        kind = rest.pop("acceleratorType").lower().replace("_", "-")
        words += _mapped("--accelerator", {"count": rest.pop("acceleratorCount"), "type": kind})
    if rest:
        raise _Unsaid
    return words


def _scaled(flag: str, metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    return _mapped(flag, {_SCALED_BY[each["metricName"]]: each["target"] for each in metrics})


def _traffic_only(flag: str, mask: str) -> list[str]:
    if mask != "trafficSplit":
        raise _Unsaid
    return []


_SPEC = "model.containerSpec"
_MACHINES = "deployedModel.dedicatedResources"
# By RPC: the command, and for each member of the message the flag and its form, in gcloud's order.
_GCLOUD: dict[str, tuple[str, dict[str, tuple[str, Form]]]] = {
    "UploadModel": (
        "models upload",
        {
            "parent": ("", _unsaid),
            "model.displayName": ("display-name", _plain),
            "modelId": ("model-id", _plain),
            "parentModel": ("parent-model", _plain),
            "model.artifactUri": ("artifact-uri", _plain),
            "model.versionAliases": ("version-aliases", _listed),
            "model.labels": ("labels", _mapped),
            f"{_SPEC}.imageUri": ("container-image-uri", _plain),
            f"{_SPEC}.args": ("container-args", _listed),
            f"{_SPEC}.env": ("container-env-vars", _variables),
            f"{_SPEC}.ports": ("container-ports", _ports),
            f"{_SPEC}.grpcPorts": ("container-grpc-ports", _ports),
            f"{_SPEC}.predictRoute": ("container-predict-route", _plain),
            f"{_SPEC}.healthRoute": ("container-health-route", _plain),
            f"{_SPEC}.sharedMemorySizeMb": ("container-shared-memory-size-mb", _plain),
            f"{_SPEC}.deploymentTimeout": ("container-deployment-timeout-seconds", _seconds),
            **{
                f"{_SPEC}.{name}Probe.{member}": (f"container-{name}-probe-{flag}", form)
                for name in ("startup", "health")
                for member, flag, form in (
                    ("exec.command", "exec", _listed),
                    ("periodSeconds", "period-seconds", _plain),
                    ("timeoutSeconds", "timeout-seconds", _plain),
                )
            },
        },
    ),
    "CreateEndpoint": (
        "endpoints create",
        {
            "parent": ("", _unsaid),
            "endpoint.displayName": ("display-name", _plain),
            "endpointId": ("endpoint-id", _plain),
            "endpoint.labels": ("labels", _mapped),
        },
    ),
    "DeployModel": (
        "endpoints deploy-model",
        {
            "endpoint": ("", _last),
            "deployedModel.model": ("model", _last),
            "deployedModel.displayName": ("display-name", _plain),
            "deployedModel.id": ("deployed-model-id", _plain),
            f"{_MACHINES}.machineSpec": ("machine-type", _machine),
            f"{_MACHINES}.minReplicaCount": ("min-replica-count", _plain),
            f"{_MACHINES}.maxReplicaCount": ("max-replica-count", _plain),
            f"{_MACHINES}.autoscalingMetricSpecs": ("autoscaling-metric-specs", _scaled),
            f"{_MACHINES}.spot": ("spot", _alone),
            "deployedModel.serviceAccount": ("service-account", _plain),
            "deployedModel.enableAccessLogging": ("enable-access-logging", _alone),
            "trafficSplit": ("traffic-split", _mapped),
        },
    ),
    "UpdateEndpoint": (
        "endpoints update",
        {
            "updateMask": ("", _traffic_only),
            "endpoint.name": ("", _last),
            "endpoint.trafficSplit": ("traffic-split", _mapped),
        },
    ),
    "UndeployModel": (
        "endpoints undeploy-model",
        {
            "endpoint": ("", _last),
            "deployedModelId": ("deployed-model-id", _plain),
            "trafficSplit": ("traffic-split", _mapped),
        },
    ),
    "GetEndpoint": ("endpoints describe", {"name": ("", _last)}),
    "ListEndpoints": ("endpoints list", {"parent": ("", _unsaid), "filter": ("filter", _plain)}),
    "DeleteEndpoint": ("endpoints delete", {"name": ("quiet", _last_then_flag)}),
    "DeleteModel": ("models delete", {"name": ("quiet", _last_then_flag)}),
    "DeleteModelVersion": ("models delete-version", {"name": ("quiet", _last_then_flag)}),
}
# For calls that gcloud cannot make: the HTTP method, the path (members of the message in braces), and the member that
# is the body; "*" stands for all other members.
_REST = {
    "UploadModel": ("POST", "{parent}/models:upload", "*"),
    "CreateEndpoint": ("POST", "{parent}/endpoints?endpointId={endpointId}", "endpoint"),
    "DeployModel": ("POST", "{endpoint}:deployModel", "*"),
    "CreateBatchPredictionJob": ("POST", "{parent}/batchPredictionJobs", "batchPredictionJob"),
    "GetBatchPredictionJob": ("GET", "{name}", ""),
}


def _curl(call: Call, api: str) -> str:
    method, path, member = _REST[call.rpc]
    document = call.document()
    url = f"{api}/v1/{path.format_map(document)}"
    words = ["curl", "--fail-with-body", "-X", method]
    if not member:
        return f"{shlex.join(words)} -H {_authorization()} {shlex.quote(url)}"
    in_path = re.findall(r"\{(\w+)\}", path)
    rest = {name: value for name, value in document.items() if name not in in_path}
    body = json.dumps(rest if member == "*" else rest[member])
    return _posted(words, url, {"Content-Type": "application/json"}, shlex.quote(body))


def _curl_through(call: EndpointCall) -> str:
    body = call.body
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or len(body) > _LONGEST_BODY:
        return f"# a body of {len(body)} bytes, too long or binary for a command line"
    words = ["curl", "--fail-with-body", *(["--insecure"] if call.private else [])]
    return _posted(words, call.url, call.all_headers, shlex.quote(text))


def _posted(words: Sequence[str], url: str, headers: Mapping[str, str], body: str) -> str:
    given = " ".join(f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers.items())
    return f"{shlex.join(words)} -H {_authorization()} {given} {shlex.quote(url)} --data-binary {body}"


def _authorization() -> str:
    """The header in double quotes, so that the shell inserts the token."""
    return f'"{_TOKEN}"'
