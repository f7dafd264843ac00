"""`trident emulate`: serve a model in a container of this machine as a cloud platform would.

Source: docs/spec/vertex.md sections A1, A3, A4 and A5 for the values that Vertex AI accepts.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import orjson

from trident.adapters.common.options import (
    FILE,
    FOLDER,
    PORT,
    SWITCH,
    TEXT,
    BadOption,
    BadValue,
    Kind,
    Option,
    choice,
    integer,
    number,
)
from trident.app.process.environment import process_environment
from trident.app.serve import repositories_around
from trident.app.settings.groups import named_values
from trident.core.backends.model_files import start_of
from trident.core.backends.registry import BackendRegistry
from trident.core.errors import InvalidRequest
from trident.core.http.sample_request import Place, SampleRequest, make_sample, python_body, write_request
from trident.core.observability.log import print_line
from trident.core.repository.check import check_model
from trident.core.repository.layouts import FolderShape, folder_shape
from trident.core.repository.repository import ModelDirectory
from trident.tools.emulators import azureml
from trident.tools.emulators.sagemaker import emulator as sagemaker
from trident.tools.emulators.sagemaker.api_model import read_settings_file
from trident.tools.emulators.sagemaker.hosting import OPERATIONS, Hosting
from trident.tools.emulators.sagemaker.transform import TransformOptions
from trident.tools.emulators.vertex import emulator as vertex
from trident.tools.emulators.vertex.batch import (
    BATCH_SIZE,
    BatchOptions,
    InstanceConfig,
    InstancesFormat,
    InstanceType,
    format_of,
)
from trident.tools.emulators.vertex.container import RESERVED_PREFIX
from trident.tools.emulators.vertex.endpoint import (
    GRPC_INSTALLATION,
    LONGEST_DEPLOYMENT_S,
    LONGEST_INFERENCE_S,
    Deployment,
    EndpointType,
    VertexLimits,
    batch_limits,
    online_limits,
)
from trident.tools.options import CACHE_OPTIONS, read_cloud_cache, read_values

_GZIP = b"\x1f\x8b"


def emulate(arguments: Sequence[str]) -> int:
    """Run until SIGINT, SIGTERM or SIGHUP, or the end of a job. The exit status is 1 if a limit of the platform was
    broken or a part of the job has failed, else 0.

    Raises BadOption, and ConfigInvalid for a model that cannot be used. Call it from the main thread.
    """
    read, make, example = _PLATFORMS[platform_of(arguments)]
    options = read(arguments, process_environment())
    with repositories_around(links=False) as around, stop_signals() as stopped:
        path = Path(options.model)
        # The platforms take archives as they are.
        if path.is_file() and start_of(path, len(_GZIP)) != _GZIP:
            options = replace(options, model=around(options.model))
        emulator = make(options, sys.stdout, sys.stderr)
        status: int = emulator.run(stopped, lambda url: print_line(example(options, url), sys.stdout))
        return status


def platform_of(arguments: Sequence[str]) -> str:
    """The first argument that is a platform's name; options may come before it. Raises BadOption."""
    for argument in arguments:
        if argument in _PLATFORMS:
            return argument
    raise BadOption(f"a platform must be named: {' or '.join(f'trident emulate {name} MODEL' for name in _PLATFORMS)}")


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Give an event that SIGINT, SIGTERM and SIGHUP set while the context lasts. Main thread."""
    stopped = threading.Event()
    # A signal handler interrupts the main thread at any point, which may hold the event's lock: setting the event there
    # could deadlock. `SimpleQueue.put` is safe in a handler.
    asked: SimpleQueue[None] = SimpleQueue()

    def wait_for_signal() -> None:
        asked.get()
        stopped.set()

    thread = threading.Thread(target=wait_for_signal, name="stop signals", daemon=True)
    thread.start()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: asked.put(None)) for number in numbers}
    try:
        yield stopped
    finally:
        for number, action in before.items():
            signal.signal(number, action)
        asked.put(None)
        thread.join()


# --- a call that works as it is printed

_UNKNOWN = "request.json has a request for the model: the JSON of `trident request NAME`, of `trident serve MODEL`"


def _sample(model: str) -> SampleRequest | None:
    """A request for the only model in a folder of this machine; None for any other, and where there is none in JSON."""
    root = Path(model)
    if not root.is_dir():
        return None
    paths = [path.relative_to(root).as_posix() for path in root.rglob("*")]
    shape = folder_shape(paths)
    folders = [root] if shape is FolderShape.MODEL else sorted(path for path in root.iterdir() if path.is_dir())
    # The environment of a Python model takes minutes to make.
    if shape is FolderShape.FILES or len(folders) != 1 or (folders[0] / "requirements.txt").exists():
        return None
    found = check_model(ModelDirectory(folders[0].name, folders[0]), BackendRegistry({"": {}}, gpu_ids=()))
    sample = make_sample(found.valid[-1][1]) if found.valid else None
    return None if sample is None or sample.spec.decoupled else sample


def _python_body(sample: SampleRequest | None, binary_type: str) -> dict[str, str]:
    if sample is None:
        body = f'# {_UNKNOWN}\nbody = open("request.json").read()'
        return {"imports": "", "body": body, "content_type": '"application/json"'}
    body, content_type, module = python_body(sample, binary_type)
    return {"imports": f"import {module}\n" if module else "", "body": body, "content_type": content_type}


# --- what the options of all have in common: `arguments` are those after `emulate`, of which those after `--` belong to
# the container; `environment` is the process's. The functions that read them raise BadOption.

# -P keeps a folder `app` in the working directory from being imported.
CONTAINER_COMMAND = (sys.executable, "-P", "-m", "trident.app")


def _variable(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        raise BadValue(f"--env takes NAME=VALUE, not '{text}'")
    return text


VARIABLE = Kind("NAME=VALUE", _variable)


def own_option(flag: str, kind: Kind[Any], default: Any, help: str) -> Option:
    """An option of an emulator; it is repeatable if its default is ()."""
    return Option.of_command(flag, kind, default, help, repeatable=default == ())


def _read(
    platform: str, options: Sequence[Option], arguments: Sequence[str], cure: str, *, needs_model: bool = True
) -> tuple[dict[str, Any], str, list[str]]:
    """The values of the options, the model ("" for none), and the arguments after `--`, which are the container's."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    values, words = read_values(options, arguments[:end])
    if words[:1] != [platform] or len(words) > 2 or (needs_model and len(words) < 2):
        raise BadOption(cure)
    return values, words[1] if words[1:] else "", list(arguments[end + 1 :])


# --- SageMaker

_VARIABLES_AT_MOST = 100
_VARIABLE_BYTES_AT_MOST = 1024
_ALL_BYTES_AT_MOST = 32 << 10
_SAGEMAKER_EXAMPLE = """\
import boto3
{imports}client = boto3.client("sagemaker-runtime", endpoint_url="{url}", region_name="us-east-1",
                      aws_access_key_id="any", aws_secret_access_key="any")
{body}
answer = client.invoke_endpoint(EndpointName="any", {target}ContentType={content_type}, Body=body)
print(answer["Body"].read())"""
_MULTI_MODEL = (
    "A multi-model endpoint: MODEL contains a .tar.gz of each model, which TargetModel names; from cloud storage each "
    "is fetched when it is first called."
)
_SETTINGS = (
    "JSON with the parameters of CreateModel, CreateEndpointConfig, CreateInferenceComponent or CreateTransformJob: "
    "several instances, an asynchronous or serverless endpoint, a component, a job."
)
_TRANSFORM = (
    "Run a batch transform job instead of an endpoint. The input is a file, a folder or s3://bucket/prefix; status 1 "
    "if an object has no output."
)
SAGEMAKER_OPTIONS = (
    own_option("multi-model", SWITCH, False, _MULTI_MODEL),
    own_option("port", PORT, 0, "Port of the runtime API; default 0, any free one."),
    own_option("env", VARIABLE, (), "A variable of the model's environment."),
    own_option("settings", FILE, "", _SETTINGS),
    own_option("batch", TEXT, "", _TRANSFORM),
    own_option("output", TEXT, "", "The folder or s3://bucket/prefix of the job's output."),
    *CACHE_OPTIONS,
)


def read_sagemaker(arguments: Sequence[str], environment: Mapping[str, str]) -> sagemaker.EmulatorOptions:
    cure = "one model must be named: trident emulate sagemaker MODEL"
    values, model, theirs = _read("sagemaker", SAGEMAKER_OPTIONS, arguments, cure)
    if theirs:
        raise BadOption("the platform passes no arguments to a container")
    hosting = Hosting(read_settings_file(Path(values["settings"]), OPERATIONS) if values["settings"] else {})
    given, output = values["batch"], values["output"]
    if bool(given) != bool(output):
        raise BadOption("a batch transform job has both an input and an output: --batch=INPUT --output=DIR")
    if given and (values["multi-model"] or values["port"]):
        raise BadOption.of("--batch", "a job has neither several models nor an endpoint")
    return sagemaker.EmulatorOptions(
        model=model,
        hosting=hosting,
        batch=TransformOptions(input=given, output=output, job=hosting.transform) if given else None,
        multi_model=values["multi-model"],
        api_port=values["port"],
        command=CONTAINER_COMMAND,
        environment=environment,
        variables=_sagemaker_variables(values["env"]),
        cache=read_cloud_cache(values, environment),
    )


def sagemaker_example(options: sagemaker.EmulatorOptions, url: str) -> str:
    sample = None if options.multi_model else _sample(options.model)
    target = 'TargetModel="NAME.tar.gz", ' if options.multi_model else ""
    binary = "application/vnd.sagemaker-triton.binary+json"
    return _SAGEMAKER_EXAMPLE.format(url=url, target=target, **_python_body(sample, binary))


def _sagemaker_variables(texts: Sequence[str]) -> dict[str, str]:
    variables = named_values(texts)
    sizes = [len(part.encode(errors="surrogateescape")) for pair in variables.items() for part in pair]
    if len(variables) > _VARIABLES_AT_MOST:
        raise BadOption.of("--env", f"the platform takes at most {_VARIABLES_AT_MOST} variables, not {len(variables)}")
    if max(sizes, default=0) > _VARIABLE_BYTES_AT_MOST or sum(sizes) > _ALL_BYTES_AT_MOST:
        raise BadOption.of(
            "--env",
            f"the platform takes names and values of at most {_VARIABLE_BYTES_AT_MOST} bytes each, "
            f"{_ALL_BYTES_AT_MOST} in all",
        )
    return variables


# --- Vertex AI

_EVERY_PATH = "/*"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ROUTE = re.compile(r"/[!-~]*")
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


def _route(text: str) -> str:
    if not _ROUTE.fullmatch(text):
        raise BadValue(f"it takes the path of a URL, such as /predict, not '{text}'")
    return text


_PATH = Kind("string", _route)
_ENDPOINT_TYPE = choice("endpoint-type", *EndpointType)
_INSTANCE_TYPE = choice("instance-type", InstanceType.ARRAY, InstanceType.OBJECT)
_FIELDS = Kind("<name>[,<name>...]", lambda text: tuple(text.split(",")))
_ENDPOINT_TYPES = "10 MB and 600 s for a call, or 1.5 MB and 60 s; default dedicated."
_DEPLOYMENT_TIMEOUT = "Seconds until the container must be healthy; default 1800 (a batch job: 2400), at most 7200."
_INVOKE_ROUTE_PREFIX = "/*: every path of the container is served below .../invoke/, and nothing else is."
_GRPC_PORT = "The container's gRPC port, for directRawPredict; it opens 8001 with --allow-grpc=true."
_INSTANCES_FORMAT = "Default by the name of the input; each line of a file-list names a file."
VERTEX_OPTIONS = (
    own_option("port", PORT, 0, "Port of the API; default 0, any free one."),
    own_option("env", VARIABLE, (), "A variable of the model's environment, not AIP_...."),
    own_option("args", TEXT, (), "An argument of the container, like those after --."),
    own_option("endpoint-type", _ENDPOINT_TYPE, EndpointType.DEDICATED.value, _ENDPOINT_TYPES),
    own_option("inference-timeout", number(0), 0.0, "Seconds of a call to a dedicated endpoint; at most 3600."),
    own_option("deployment-timeout", number(0), 0.0, _DEPLOYMENT_TIMEOUT),
    own_option("predict-route", _PATH, "", "Default the platform's, /v1/endpoints/.../deployedModels/...:predict."),
    own_option("health-route", _PATH, "", "Default the platform's, /v1/endpoints/.../deployedModels/...."),
    own_option("invoke-route-prefix", TEXT, "", _INVOKE_ROUTE_PREFIX),
    own_option("grpc-port", PORT, 0, _GRPC_PORT),
    own_option("batch", FILE, "", "Run a batch prediction job instead of an endpoint; status 1 if an instance failed."),
    own_option("output", FOLDER, "", "Directory for predictions_0001.jsonl and errors_0001.jsonl."),
    own_option("instances-format", choice("instances-format", *InstancesFormat), "", _INSTANCES_FORMAT),
    own_option("instance-type", _INSTANCE_TYPE, "", "The form of an instance; default that of the input."),
    own_option("key-field", TEXT, "", "A field that is not sent, and replaces the instance in the output."),
    own_option("included-fields", _FIELDS, None, "The fields of an object that are sent, in this order."),
    own_option("excluded-fields", _FIELDS, None, "The fields of an object that are not sent."),
    own_option("batch-size", integer(1), 0, "Instances in a request; default 64."),
    own_option("model-parameters", Kind("<json>", _json_document), None, "The parameters of every request."),
    *CACHE_OPTIONS,
)


def read_vertex(arguments: Sequence[str], environment: Mapping[str, str]) -> vertex.EmulatorOptions:
    cure = "at most one model can be named: trident emulate vertex [GS_URI_OR_DIR]"
    values, model, theirs = _read("vertex", VERTEX_OPTIONS, arguments, cure, needs_model=False)
    if not model:
        for each in VERTEX_OPTIONS[1:]:
            if each not in CACHE_OPTIONS and values[each.flag] != each.default:
                raise BadOption.of(f"--{each.flag}", "it goes with a model: trident emulate vertex GS_URI_OR_DIR")
        if theirs:
            raise BadOption("arguments of a container go with a model: trident emulate vertex GS_URI_OR_DIR -- …")
    _check_together(values)
    return vertex.EmulatorOptions(
        model=model,
        command=[*CONTAINER_COMMAND, "serve"],
        arguments=(*values["args"], *theirs),
        environment=environment,
        variables=_vertex_variables(values["env"]),
        deployment=Deployment(
            display_name=model.rstrip("/").rpartition("/")[2] or "model",
            endpoint_type=EndpointType(values["endpoint-type"]),
            is_invoked=bool(values["invoke-route-prefix"]),
            predict_route=values["predict-route"],
            health_route=values["health-route"],
            grpc_port=values["grpc-port"],
        ),
        limits=_limits(values),
        api_port=values["port"],
        batch=_prediction_job(values) if values["batch"] else None,
        cache=read_cloud_cache(values, environment),
    )


def _check_together(values: dict[str, Any]) -> None:
    is_batch = bool(values["batch"])
    defaults = {each.flag: each.default for each in VERTEX_OPTIONS}
    for flag in _ONLINE_ONLY if is_batch else _BATCH_ONLY:
        if values[flag] != defaults[flag]:
            raise BadOption.of(f"--{flag}", "a batch job has no endpoint" if is_batch else "it goes with --batch")
    if is_batch and not values["output"]:
        raise BadOption("a batch job needs a folder for its output: --output=DIR")
    if values["grpc-port"] and values["endpoint-type"] != EndpointType.DEDICATED:
        raise BadOption.of("--grpc-port", "it needs a dedicated endpoint")
    if values["grpc-port"] and find_spec("grpc") is None:
        raise BadOption.of("--grpc-port", f"it needs the package grpcio: {GRPC_INSTALLATION}")
    prefix = values["invoke-route-prefix"]
    if not prefix:
        return
    if prefix != _EVERY_PATH:
        raise BadOption.of("--invoke-route-prefix", f"the platform takes only {_EVERY_PATH}, not '{prefix}'")
    if values["predict-route"]:
        raise BadOption.of("--invoke-route-prefix", "a model has a predict route or an invoke route prefix, not both")
    if values["endpoint-type"] != EndpointType.DEDICATED:
        raise BadOption.of("--invoke-route-prefix", "it needs a dedicated endpoint")


def _vertex_variables(texts: Sequence[str]) -> dict[str, str]:
    variables = named_values(texts)
    for name in variables:
        if name.startswith(RESERVED_PREFIX):
            raise BadOption.of(
                "--env", f"the platform keeps names that begin with {RESERVED_PREFIX} to itself: '{name}'"
            )
        if not _NAME.fullmatch(name):
            raise BadOption.of("--env", f"'{name}' is not a valid name of a variable on the platform")
    return variables


def _limits(values: dict[str, Any]) -> VertexLimits:
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


def _prediction_job(values: dict[str, Any]) -> BatchOptions:
    path = Path(values["batch"])
    return BatchOptions(
        input=path,
        output=Path(values["output"]),
        instances_format=InstancesFormat(values["instances-format"] or format_of(path)),
        config=InstanceConfig(
            instance_type=InstanceType(values["instance-type"]),
            key_field=values["key-field"],
            included_fields=values["included-fields"] or (),
            excluded_fields=values["excluded-fields"] or (),
        ),
        batch_size=values["batch-size"] or BATCH_SIZE,
        parameters=values["model-parameters"],
    )


_VERTEX_SDK = """\
{imports}from google.api.httpbody_pb2 import HttpBody
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform_v1

client = aiplatform_v1.PredictionServiceClient(
    transport="rest", client_options={{"api_endpoint": "{url}"}}, credentials=AnonymousCredentials())
{body}
content = HttpBody(data=body{encode}, content_type={content_type})
answer = client.raw_predict(request={{"endpoint": "{endpoint}", "http_body": content}})
print(answer.data)"""
_VERTEX_DEPLOY = """\
  python -m deploy.vertex upload --api-endpoint={url} --project=any --location=us-central1 …"""
_VERTEX_CURL = """\
  # PATH is a route of the container, and request.json a body that it takes
  curl -d @request.json {url}/v1/{endpoint}/invoke/PATH"""


def vertex_example(options: vertex.EmulatorOptions, url: str) -> str:
    if not options.model:
        return _VERTEX_DEPLOY.format(url=url)
    endpoint = options.deployment.endpoint
    if options.deployment.is_invoked:
        return _VERTEX_CURL.format(url=url, endpoint=endpoint)
    sample = _sample(options.model)
    encode = "" if sample and sample.needs_binary else ".encode()"
    body = _python_body(sample, "application/vnd.vertex-ai-triton.binary+json")
    return _VERTEX_SDK.format(url=url, endpoint=endpoint, encode=encode, **body)


# --- Azure ML

_LONGEST_MS = 180_000
_AZUREML_HEADER = "-H 'Content-Type: application/json'"
AZUREML_OPTIONS = (
    own_option("port", PORT, 0, "Port of the endpoint; default 0, any free one."),
    own_option("env", VARIABLE, (), "A variable of the deployment."),
    own_option("request-timeout-ms", integer(1, _LONGEST_MS), 5000, "Of a call; default 5000, at most 180000."),
)
OPTIONS = {
    """\
SageMaker: boto3.client("sagemaker-runtime", endpoint_url=...) works with it. MODEL is a folder or a .tar.gz, as a path,
s3://bucket/prefix or gs://bucket/prefix.""": SAGEMAKER_OPTIONS,
    """\
Vertex AI: PredictionServiceClient(transport="rest", client_options={"api_endpoint": ...}) works with it. A folder is
copied; a gs:// address is passed to the server unchanged, with STORAGE_EMULATOR_HOST. Without a MODEL the project is
empty, and python -m deploy.vertex --api-endpoint=... or the SDK uploads and deploys models to it.""": VERTEX_OPTIONS,
    """\
Azure ML: POST /score works with it, as with an online endpoint of a custom container. DIR is a model or a
repository.""": AZUREML_OPTIONS,
}


def read_azureml(arguments: Sequence[str], environment: Mapping[str, str]) -> azureml.EmulatorOptions:
    cure = "one model must be named: trident emulate azureml DIR"
    values, model, theirs = _read("azureml", AZUREML_OPTIONS, arguments, cure)
    return azureml.EmulatorOptions(
        model=model,
        command=[*CONTAINER_COMMAND, "serve"],
        arguments=theirs,
        environment=environment,
        variables=named_values(values["env"]),
        api_port=values["port"],
        request_timeout_s=values["request-timeout-ms"] / 1000,
    )


def azureml_example(options: azureml.EmulatorOptions, url: str) -> str:
    sample = _sample(options.model)
    with suppress(InvalidRequest):
        if sample is not None:
            text = write_request(sample, "curl", Place(url=url))
            return text.replace(f"{url}{sample.path}/infer", f"{url}/score {_AZUREML_HEADER}")
    return f"  # {_UNKNOWN}\n  curl {_AZUREML_HEADER} -d @request.json {url}/score"


# Of each platform what reads the options, its emulator, and an example of a call.
_PLATFORMS: Mapping[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[Any, str], str]]] = {
    "sagemaker": (read_sagemaker, sagemaker.Emulator, sagemaker_example),
    "vertex": (read_vertex, vertex.Emulator, vertex_example),
    "azureml": (read_azureml, azureml.Emulator, azureml_example),
}
