"""The options of `trident emulate vertex`.

Source: docs/spec/vertex.md sections A1, A3, A4 and A5 for the values that the platform accepts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from trident.adapters.common.options import FILE, FOLDER, PORT, TEXT, BadOption, BadValue, Kind, choice, integer, number
from trident.app.commands.emulate import (
    CONTAINER_COMMAND,
    VARIABLE,
    own_option,
    split_arguments,
    variables_of,
)
from trident.app.emulators.vertex.batch import (
    BATCH_SIZE,
    BatchOptions,
    InstanceConfig,
    InstancesFormat,
    InstanceType,
    format_of,
)
from trident.app.emulators.vertex.container import RESERVED_PREFIX
from trident.app.emulators.vertex.emulator import Emulator as Emulator
from trident.app.emulators.vertex.emulator import EmulatorOptions
from trident.app.emulators.vertex.limits import (
    LONGEST_DEPLOYMENT_S,
    LONGEST_INFERENCE_S,
    Deployment,
    EndpointType,
    PlatformLimits,
    batch_limits,
    online_limits,
)
from trident.app.settings.reading import CACHE_OPTIONS, read_cloud_cache
from trident.app.settings.sources import read_values

VERTEX = "vertex"
_EVERY_PATH = "/*"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ROUTE = re.compile(r"/[!-~]*")
_DEFAULT_NAME = "model"
_BATCH_ONLY = (
    "output",
    "instances-format",
    "instance-type",
    "key-field",
    "included-fields",
    "excluded-fields",
    "batch-size",
    "model-parameters",
)
_ONLINE_ONLY = ("port", "endpoint-type", "inference-timeout", "invoke-route-prefix", "grpc-port")


def _json_document(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadValue(f"it takes a JSON document: {error}") from None


def _fields(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _route(text: str) -> str:
    if not _ROUTE.fullmatch(text):
        raise BadValue(f"it takes the path of a URL, such as /predict, not '{text}'")
    return text


_PATH = Kind("string", _route)
_ENDPOINT_TYPE = choice("endpoint-type", *EndpointType)
_INSTANCE_TYPE = choice("instance-type", InstanceType.ARRAY, InstanceType.OBJECT)
_FIELDS = Kind("<name>[,<name>...]", _fields)
ACCEPTED = (
    own_option("port", PORT, 0, "Port of the API; 0 finds a free one."),
    own_option("env", VARIABLE, (), "A variable of the model's environment."),
    own_option("args", TEXT, (), "An argument of the container."),
    own_option("endpoint-type", _ENDPOINT_TYPE, EndpointType.DEDICATED.value, "The endpoint's type."),
    own_option("inference-timeout", number(0), 0.0, "Seconds that a call may take."),
    own_option("deployment-timeout", number(0), 0.0, "Seconds until the container must be healthy."),
    own_option("predict-route", _PATH, "", "The predict route."),
    own_option("health-route", _PATH, "", "The health route."),
    own_option("invoke-route-prefix", TEXT, "", "Every path of the container is open."),
    own_option("grpc-port", PORT, 0, "The container's gRPC port."),
    own_option("batch", FILE, "", "Input of a batch prediction job."),
    own_option("output", FOLDER, "", "Folder of its output."),
    own_option("instances-format", choice("instances-format", *InstancesFormat), "", "Format of the input."),
    own_option("instance-type", _INSTANCE_TYPE, "", "Form of the instances."),
    own_option("key-field", TEXT, "", "Field that is a key."),
    own_option("included-fields", _FIELDS, None, "Fields that are sent."),
    own_option("excluded-fields", _FIELDS, None, "Fields that are not sent."),
    own_option("batch-size", integer(1), 0, "Instances in a request."),
    own_option("model-parameters", Kind("<json>", _json_document), None, "Parameters of every request."),
    *CACHE_OPTIONS,
)


def read_options(arguments: Sequence[str], environment: Mapping[str, str]) -> EmulatorOptions:
    """Read the options; `arguments` includes the word `vertex`, and those after `--` belong to the container.

    `environment` is the process's. Raises BadOption.
    """
    ours, theirs = split_arguments(arguments)
    values, others = read_values(ACCEPTED, ours)
    if not 1 <= len(others) <= 2 or others[0] != VERTEX:
        raise BadOption("at most one model can be named: trident emulate vertex [GS_URI_OR_DIR]")
    model = others[1] if others[1:] else ""
    if not model:
        _check_empty(values, theirs)
    _check_together(values)
    return EmulatorOptions(
        model=model,
        command=[*CONTAINER_COMMAND, "serve"],
        arguments=(*values["args"], *theirs),
        environment=environment,
        variables=_checked_variables(values["env"]),
        deployment=_deployment(values, model),
        limits=_limits(values),
        api_port=values["port"],
        batch=_batch(values) if values["batch"] else None,
        cache=read_cloud_cache(values, environment),
    )


def _check_empty(values: dict[str, Any], theirs: Sequence[str]) -> None:
    """Raise BadOption for what describes a model where none is named."""
    for each in ACCEPTED[1:]:
        if each not in CACHE_OPTIONS and values[each.flag] != each.default:
            raise BadOption.of(f"--{each.flag}", "it goes with a model: trident emulate vertex GS_URI_OR_DIR")
    if theirs:
        raise BadOption("arguments of a container go with a model: trident emulate vertex GS_URI_OR_DIR -- …")


def _check_together(values: dict[str, Any]) -> None:
    is_batch = bool(values["batch"])
    for flag in _ONLINE_ONLY if is_batch else _BATCH_ONLY:
        if values[flag] != _defaults()[flag]:
            raise BadOption.of(f"--{flag}", "a batch job has no endpoint" if is_batch else "it goes with --batch")
    if is_batch and not values["output"]:
        raise BadOption("a batch job needs a folder for its output: --output=DIR")
    if values["grpc-port"] and values["endpoint-type"] != EndpointType.DEDICATED:
        raise BadOption.of("--grpc-port", "it needs a dedicated endpoint")
    prefix = values["invoke-route-prefix"]
    if not prefix:
        return
    if prefix != _EVERY_PATH:
        raise BadOption.of("--invoke-route-prefix", f"the platform takes only {_EVERY_PATH}, not '{prefix}'")
    if values["predict-route"]:
        raise BadOption.of("--invoke-route-prefix", "a model has a predict route or an invoke route prefix, not both")
    if values["endpoint-type"] != EndpointType.DEDICATED:
        raise BadOption.of("--invoke-route-prefix", "it needs a dedicated endpoint")


def _defaults() -> dict[str, Any]:
    return {each.flag: each.default for each in ACCEPTED}


def _checked_variables(texts: Sequence[str]) -> dict[str, str]:
    variables = variables_of(texts)
    for name in variables:
        if name.startswith(RESERVED_PREFIX):
            raise BadOption.of(
                "--env", f"the platform keeps names that begin with {RESERVED_PREFIX} to itself: '{name}'"
            )
        if not _NAME.fullmatch(name):
            raise BadOption.of("--env", f"'{name}' is not a valid name of a variable on the platform")
    return variables


def _deployment(values: dict[str, Any], model: str) -> Deployment:
    return Deployment(
        display_name=model.rstrip("/").rpartition("/")[2] or _DEFAULT_NAME,
        endpoint_type=EndpointType(values["endpoint-type"]),
        is_invoked=bool(values["invoke-route-prefix"]),
        predict_route=values["predict-route"],
        health_route=values["health-route"],
        grpc_port=values["grpc-port"],
    )


def _limits(values: dict[str, Any]) -> PlatformLimits:
    deployment_s, inference_s = values["deployment-timeout"], values["inference-timeout"]
    if deployment_s > LONGEST_DEPLOYMENT_S:
        raise BadOption.of("--deployment-timeout", f"the platform waits at most {LONGEST_DEPLOYMENT_S:g} s")
    if values["batch"]:
        return batch_limits(deployment_s)
    endpoint_type = EndpointType(values["endpoint-type"])
    if inference_s and endpoint_type is EndpointType.SHARED:
        raise BadOption.of("--inference-timeout", "that of a shared endpoint cannot be set")
    if inference_s > LONGEST_INFERENCE_S:
        raise BadOption.of("--inference-timeout", f"the platform waits at most {LONGEST_INFERENCE_S:g} s")
    return online_limits(endpoint_type, deployment_s, inference_s)


def _batch(values: dict[str, Any]) -> BatchOptions:
    path = Path(values["batch"])
    instances_format = InstancesFormat(values["instances-format"] or format_of(path))
    config = InstanceConfig(
        instance_type=InstanceType(values["instance-type"]),
        key_field=values["key-field"],
        included_fields=values["included-fields"] or (),
        excluded_fields=values["excluded-fields"] or (),
    )
    return BatchOptions(
        input=path,
        output=Path(values["output"]),
        instances_format=instances_format,
        config=config,
        batch_size=values["batch-size"] or BATCH_SIZE,
        parameters=values["model-parameters"],
    )


_SDK = """\
  from google.auth.credentials import AnonymousCredentials
  from google.cloud import aiplatform_v1
  client = aiplatform_v1.PredictionServiceClient(
      transport="rest", client_options={{"api_endpoint": "{url}"}}, credentials=AnonymousCredentials())
  client.predict(endpoint="{endpoint}", instances=[…])"""
_DEPLOY = """\
  python -m deploy.vertex upload --api-endpoint={url} --project=any --location=us-central1 …"""
_CURL = """\
  curl -d @body {url}/v1/{endpoint}/invoke/PATH"""


def example(options: EmulatorOptions, url: str) -> str:
    """An example of a call, for the user."""
    if not options.model:
        return _DEPLOY.format(url=url)
    deployment = options.deployment
    return (_CURL if deployment.is_invoked else _SDK).format(url=url, endpoint=deployment.endpoint)
