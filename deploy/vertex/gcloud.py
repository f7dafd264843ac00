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


class _Fields:
    """The members of a message; those that nobody takes would be missing from the command."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._left = dict(document)

    def take(self, name: str, default: Any = "") -> Any:
        return self._left.pop(name, default)

    def inside(self, name: str) -> _Fields:
        return _Fields(self.take(name, {}))

    def check_empty(self) -> None:
        if self._left:
            raise _Unsaid


def shell_command(call: Call, place: Place, api: str) -> str:
    """The command, quoted for a shell; a comment if no command exists. `api` is the address with its scheme."""
    if isinstance(call, EndpointCall):
        return _curl_through(call)
    fields = _Fields(call.document())
    try:
        words = ["ai", *_GCLOUD[call.rpc](fields)]
        fields.check_empty()
    except (_Unsaid, KeyError):
        return _curl(call, api)
    return shlex.join(["gcloud", *words, f"--project={place.project}", f"--region={place.location}"])


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _flag(name: str, value: Any) -> list[str]:
    return [f"--{name}={value}"] if value not in ("", None) else []


def _listed(name: str, values: Sequence[str]) -> list[str]:
    """A flag with a list. gcloud splits at commas unless the value begins with another separator."""
    if not values:
        return []
    for separator in _SEPARATORS:
        if not any(separator in value for value in values):
            start = "" if separator == "," and not values[0].startswith("^") else f"^{separator}^"
            return [f"--{name}={start}{separator.join(values)}"]
    raise _Unsaid


def _mapped(name: str, values: Mapping[str, Any]) -> list[str]:
    return _listed(name, [f"{key}={value}" for key, value in values.items()])


def _seconds(text: str) -> str:
    if not text:
        return ""
    found = _SECONDS.fullmatch(text)
    if found is None:
        raise _Unsaid
    return found[1]


def _upload(fields: _Fields) -> list[str]:
    fields.take("parent")
    model = fields.inside("model")
    container = model.inside("containerSpec")
    words = [
        "models",
        "upload",
        *_flag("display-name", model.take("displayName")),
        *_flag("model-id", fields.take("modelId")),
        *_flag("parent-model", fields.take("parentModel")),
        *_flag("artifact-uri", model.take("artifactUri")),
        *_listed("version-aliases", model.take("versionAliases", ())),
        *_mapped("labels", model.take("labels", {})),
        *_flag("container-image-uri", container.take("imageUri")),
        *_listed("container-args", container.take("args", ())),
        *_mapped("container-env-vars", {each["name"]: each.get("value", "") for each in container.take("env", ())}),
        *_listed("container-ports", [str(each["containerPort"]) for each in container.take("ports", ())]),
        *_flag("container-predict-route", container.take("predictRoute")),
        *_flag("container-health-route", container.take("healthRoute")),
        *_flag("container-shared-memory-size-mb", container.take("sharedMemorySizeMb")),
        *_flag("container-deployment-timeout-seconds", _seconds(container.take("deploymentTimeout"))),
    ]
    for name in ("startup", "health"):
        words += _probe(name, container.inside(f"{name}Probe"))
    container.check_empty()
    model.check_empty()
    return words


def _probe(name: str, probe: _Fields) -> list[str]:
    words = [
        *_listed(f"container-{name}-probe-exec", probe.inside("exec").take("command", ())),
        *_flag(f"container-{name}-probe-period-seconds", probe.take("periodSeconds")),
        *_flag(f"container-{name}-probe-timeout-seconds", probe.take("timeoutSeconds")),
    ]
    probe.check_empty()
    return words


def _create_endpoint(fields: _Fields) -> list[str]:
    fields.take("parent")
    endpoint = fields.inside("endpoint")
    words = [
        "endpoints",
        "create",
        *_flag("display-name", endpoint.take("displayName")),
        *_flag("endpoint-id", fields.take("endpointId")),
        *_mapped("labels", endpoint.take("labels", {})),
    ]
    endpoint.check_empty()
    return words


def _deploy(fields: _Fields) -> list[str]:
    model = fields.inside("deployedModel")
    resources = model.inside("dedicatedResources")
    machine = resources.inside("machineSpec")
    accelerator = {"count": machine.take("acceleratorCount"), "type": machine.take("acceleratorType")}
    scaled = {_SCALED_BY[each["metricName"]]: each["target"] for each in resources.take("autoscalingMetricSpecs", ())}
    words = [
        "endpoints",
        "deploy-model",
        _last(fields.take("endpoint")),
        *_flag("model", _last(model.take("model"))),
        *_flag("display-name", model.take("displayName")),
        *_flag("deployed-model-id", model.take("id")),
        *_flag("machine-type", machine.take("machineType")),
        *(_mapped("accelerator", _in_gclouds_words(accelerator)) if accelerator["type"] else []),
        *_flag("min-replica-count", resources.take("minReplicaCount")),
        *_flag("max-replica-count", resources.take("maxReplicaCount")),
        *_mapped("autoscaling-metric-specs", scaled),
        *(["--spot"] if resources.take("spot") else []),
        *_flag("service-account", model.take("serviceAccount")),
        *(["--enable-access-logging"] if model.take("enableAccessLogging") else []),
        *_mapped("traffic-split", fields.take("trafficSplit", {})),
    ]
    machine.check_empty()
    resources.check_empty()
    model.check_empty()
    return words


def _in_gclouds_words(accelerator: Mapping[str, Any]) -> dict[str, Any]:
    return {**accelerator, "type": accelerator["type"].lower().replace("_", "-")}


def _update_endpoint(fields: _Fields) -> list[str]:
    endpoint = fields.inside("endpoint")
    if fields.take("updateMask") != "trafficSplit":
        raise _Unsaid
    words = ["endpoints", "update", _last(endpoint.take("name"))]
    words += _mapped("traffic-split", endpoint.take("trafficSplit", {}))
    endpoint.check_empty()
    return words


def _undeploy(fields: _Fields) -> list[str]:
    return [
        "endpoints",
        "undeploy-model",
        _last(fields.take("endpoint")),
        *_flag("deployed-model-id", fields.take("deployedModelId")),
        *_mapped("traffic-split", fields.take("trafficSplit", {})),
    ]


def _list_endpoints(fields: _Fields) -> list[str]:
    fields.take("parent")
    return ["endpoints", "list", *_flag("filter", fields.take("filter"))]


def _named(group: str, verb: str, *flags: str) -> Callable[[_Fields], list[str]]:
    return lambda fields: [group, verb, _last(fields.take("name")), *flags]


_GCLOUD: dict[str, Callable[[_Fields], list[str]]] = {
    "UploadModel": _upload,
    "CreateEndpoint": _create_endpoint,
    "DeployModel": _deploy,
    "UpdateEndpoint": _update_endpoint,
    "UndeployModel": _undeploy,
    "GetEndpoint": _named("endpoints", "describe"),
    "ListEndpoints": _list_endpoints,
    "DeleteEndpoint": _named("endpoints", "delete", "--quiet"),
    "DeleteModel": _named("models", "delete", "--quiet"),
    "DeleteModelVersion": _named("models", "delete-version", "--quiet"),
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
