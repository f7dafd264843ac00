"""The server's own texts, provoked by faults: errors, answers and log lines of real parts, as one text."""

from __future__ import annotations

import gzip
import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from tritonclient.grpc.service_pb2 import ModelInferRequest
from werkzeug.test import Client as HttpClient

from tests.certificates import Authority
from tests.unit import onnx_models
from tests.unit.core.engine.test_in_process import serving
from tests.unit.core.grpc.grpc_client import Client, ClientStream, frame, with_client
from tests.unit.core.grpc.infer_messages import infer_request
from tests.unit.core.scheduling.scheduler_bench import limit, placed
from tests.unit.core.waiting.hub_thread import until
from tests.unit.fake_engine import FakeEngine
from tests.unit.pending_requests import pending_request
from tests.unit.shared_memory_object import shared_memory_object
from trident.adapters.sagemaker.application import SageMakerApplication
from trident.adapters.sagemaker.layout import read_layout
from trident.adapters.sagemaker.memory import MemoryBudget
from trident.adapters.sagemaker.multi_model import LoadedModels
from trident.adapters.sagemaker.settings import SageMakerSettings
from trident.adapters.vertex.application import VertexApplication
from trident.adapters.vertex.endpoint import Deadline, SizeLimits
from trident.adapters.vertex.settings import VertexSettings
from trident.app.process import files as temporary_directory
from trident.app.settings.reading import read_settings
from trident.app.supervisor.engine_child import EngineChild
from trident.app.worker.http1 import request_head as refusal
from trident.app.worker.listening_sockets import open_listener
from trident.app.worker.tls import HTTP2, TlsFiles, server_context
from trident.core.backends.onnxruntime.providers import CPU, CUDA, ProviderRequest, check_active, check_available
from trident.core.backends.onnxruntime.session import failure_of
from trident.core.config.autocomplete import instance_group_problems
from trident.core.config.schema import ModelConfig, ModelInstanceGroup
from trident.core.config.spec import BatchingSpec, QueuePolicy
from trident.core.config.validate import count_problems
from trident.core.engine.bls import waits_for_itself
from trident.core.engine.in_process import InferenceEngine
from trident.core.errors import ServerStopping
from trident.core.frontend.access import GRPC, AuthTokens, Scope, parse_restricted
from trident.core.frontend.bridge import ThreadBridge
from trident.core.grpc.front_end import GrpcOptions
from trident.core.http.admin import readiness
from trident.core.http.application import V2Application
from trident.core.http.errors import message_of
from trident.core.http.front_end import HttpOptions
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse
from trident.core.observability.hardware import MemoryState
from trident.core.observability.latency_options import parse_quantiles
from trident.core.observability.log import LogFile, LogOptions, close_log, configure_logging
from trident.core.remote.calls import engine_down
from trident.core.repository.cache import ModelCache
from trident.core.repository.cloud_sources import lacks_azure
from trident.core.repository.location import parse_location
from trident.core.repository.repositories import Repositories
from trident.core.repository.repository import scan_repository
from trident.core.repository.sources import LocalSource
from trident.core.repository.stores.azure import AzureStore
from trident.core.repository.stores.gcs import GcsStore
from trident.core.repository.stores.object_store import (
    AzureCredential,
    GcsCredential,
    StoredObject,
    read_cloud_credentials,
)
from trident.core.repository.stores.s3 import S3Call
from trident.core.scheduling.open_requests import lost_between_iterations, refuse_again
from trident.core.scheduling.queue import RequestQueue
from trident.core.scheduling.rate_limiter import RateLimiter
from trident.core.scheduling.resource_limit import ResourceLimit

ONES = list(range(16))
COMPLETE = (
    '{"platform": "onnxruntime_onnx", "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [1]}], '
    '"output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [1]}]}'
)
GOLDEN = (
    '{"request": {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}, '
    '"response": {"outputs": [{"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 1], "data": [2]}]}}'
)


class ProvokedTexts(logging.Handler):
    """Collects raised errors, error answers and log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(record.getMessage())

    def raised_by(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Record the error that `call` raises."""
        with pytest.raises(Exception) as raised:  # noqa: PT011
            call(*arguments, **options)
        self.all.append(f"{raised.value}\n{getattr(raised.value, 'hint', '')}")

    def answered_by(self, application: V2Application, path: str, body: Any = None, **more: Any) -> None:
        """Record the error answer to a request. `body`: JSON, or bytes."""
        content = {"data": body} if isinstance(body, bytes) else {"json": body if body is not None else {}}
        method = more.pop("method", "POST")
        response = HttpClient(application).open(path, method=method, **content, **more)
        assert response.status_code >= 400, path
        document = response.get_json(force=True)
        self.all.append(f"{document.get('error', document)}\n{dict(response.headers)}")


def provoke_limits(texts: ProvokedTexts, _: Path) -> None:
    limiter = RateLimiter([ResourceLimit("R", 1)])
    texts.raised_by(limiter.enter, placed("m_0", limit(R=2)), "m")
    limiter.enter(placed("m_0", limit(R=1)), "m")
    texts.raised_by(limiter.enter, placed("n_0", limit(R=1, everywhere=True)), "n")
    texts.all.append(str(waits_for_itself(placed("m_0", limit(R=1)), "n", "r")))


def provoke_again(texts: ProvokedTexts, _: Path) -> None:
    texts.raised_by(refuse_again, pending_request("m"))
    texts.all.append(str(lost_between_iterations("m")))


def provoke_options(texts: ProvokedTexts, folder: Path) -> None:
    repository = "--model-repository=/models"
    both = {"AIP_MODE": "PREDICTION", "SAGEMAKER_MULTI_MODEL": "true"}
    for arguments, environ in (
        ([], {}),
        (["--http-prot=1"], {}),
        ([], {"TRIDENT_HTTP_PROT": "1"}),
        (["--grpc-keepalive=1"], {}),
        (["--grpc-use-ssl=true", repository], {}),
        (["--http-use-ssl-mutual=true", "--http-server-cert=a", "--http-server-key=b", repository], {}),
        (["--auth-token-file=/none", repository], {}),
        (["--grpc-use-ssl-mutual=true", "--grpc-server-cert=a", "--grpc-server-key=b", repository], {}),
        (["--grpc-use-ssl=true", "--grpc-server-cert=/none", "--grpc-server-key=/none", repository], {}),
        (["--sagemaker-port=8080", repository], {}),
        (["models"], {}),
        (["--allow-http=maybe", repository], {}),
        (["--http-port=many", repository], {}),
        (["--load-model=m", repository], {}),
        (["--http-port=8002", repository], {}),
        (["--allow-sagemaker=true", "--sagemaker-safe-port-range=9000-9010", repository], {}),
        (["--http-port=0", repository], {}),
        (["--cache-config=redis,host=cache", repository], {}),
        (["--cache-config=redis,host=cache", "--cache-config=local,size=1", repository], {}),
        ([repository], both),
        ([repository], {"SAGEMAKER_MULTI_MODEL": "perhaps"}),
        ([repository], {"AIP_MODE": "PREDICTION", "AIP_PREDICT_ROUTE": "predict"}),
    ):
        texts.raised_by(read_settings, arguments, environ)
    certificate, key = Authority(folder).sign("server")
    texts.raised_by(server_context, TlsFiles(str(certificate), str(key), "/none"), HTTP2)
    tokens = folder / "tokens"
    tokens.write_text("a-token-of-some-length")
    for arguments in (
        [f"--grpc-server-cert={certificate}"],
        [f"--http-server-cert={certificate}"],
        [f"--auth-token-file={tokens}", "--allow-sagemaker=true"],
    ):
        texts.all += read_settings([repository, *arguments], {}).warnings
    with open_listener("127.0.0.1", 0) as listener:
        texts.raised_by(open_listener, "127.0.0.1", listener.getsockname()[1])
    texts.raised_by(open_listener, "192.0.2.1", 0)  # an address that no machine has
    texts.raised_by(configure_logging, LogOptions(file=str(folder / "none" / "log")))
    log_file = LogFile(str(folder / "moved.log"), texts.all.append)
    (folder / "moved.log").unlink()
    (folder / "moved.log").mkdir()
    log_file.ask_to_reopen()
    log_file.write(b"")
    log_file.close()
    texts.raised_by(scan_repository, folder / "none")
    with pytest.MonkeyPatch.context() as nowhere:
        nowhere.setattr(tempfile, "tempdir", None)
        nowhere.setattr(tempfile, "_candidate_tempdir_list", list)
        nowhere.setattr(temporary_directory, "IN_MEMORY", "/nowhere")
        texts.raised_by(temporary_directory.temporary_directory)
    parse_quantiles("0.5")
    texts.raised_by(refusal.check_length, 100, 10)
    texts.all += [refusal.PLAIN_TEXT, refusal.NO_MEMORY.format(10), message_of(ValueError("a fault"))]


def provoke_storage(texts: ProvokedTexts, folder: Path) -> None:
    (folder / "empty").mkdir()
    empty = Repositories([LocalSource(folder / "empty")])
    empty.check()
    empty.warn_of_empty()
    for text in ("as://a/b/c", "ftp://a/b", "s3://me:secret@bucket/models"):
        texts.raised_by(parse_location, text)
    azure = AzureStore(parse_location("as://zoo/models"), AzureCredential(account_key="dGVzdA=="))
    texts.raised_by(_raise, lacks_azure(parse_location("as://zoo/models"), "azure"))
    texts.raised_by(_raise, azure.failure(ClientAuthenticationError("x"), "get blob", "as://zoo/models/m"))
    refused = HttpResponseError("x")
    refused.status_code = 403
    texts.raised_by(_raise, azure.failure(refused, "get blob", "as://zoo/models/m"))
    listing = S3Call("s3:ListBucket", "s3://zoo/production", "zoo", opening=True)
    reading = S3Call("s3:GetObject", "s3://zoo/production/m/1/model.onnx", "zoo", "production/m/1/model.onnx")
    texts.raised_by(_raise, listing.refused("me", "AccessDenied", "Access Denied"))
    texts.raised_by(_raise, reading.refused("me", "AccessDenied", "Access Denied"))
    texts.raised_by(_raise, reading.failed("me", "NoSuchBucket", "there is none"))
    texts.raised_by(_raise, reading.gone("changed"))
    (folder / "credentials").write_text("no JSON")
    texts.raised_by(read_cloud_credentials, str(folder / "credentials"))
    (folder / "credentials").write_text('{"s3": {"s3://other": {}}}')
    credentials = read_cloud_credentials(str(folder / "credentials"))
    texts.raised_by(credentials.credentials_for, parse_location("s3://zoo/production"))
    (folder / "open").mkdir(mode=0o777)
    (folder / "open").chmod(0o777)
    texts.raised_by(ModelCache, folder / "open")
    full = ModelCache(folder / "cache", free=lambda _: 0)
    texts.raised_by(full.make_room, "s3://zoo", {"model.onnx": StoredObject("model.onnx", 9, "tag")})
    (folder / "key").write_text("{}")
    for path in ("none", "key"):
        texts.raised_by(GcsStore, parse_location("gs://zoo"), GcsCredential(str(folder / path)))


def _raise(error: Exception) -> None:
    raise error


def provoke_processes(texts: ProvokedTexts, folder: Path) -> None:
    for code in (-9, -11, 3):
        EngineChild(lambda: 0, lambda: None).ended(code)
    requests = [ProviderRequest(CUDA, {}), ProviderRequest(CPU, {})]
    texts.raised_by(check_available, requests, [CPU], "m")
    texts.raised_by(check_active, requests, [CPU], "libcudnn.so.9", "m")
    group = ModelInstanceGroup(name="m_0", kind=ModelInstanceGroup.KIND_GPU)
    for gpus in ((), None):
        texts.all += [each.message for each in instance_group_problems(ModelConfig(instance_group=[group]), "m", gpus)]
    group = ModelInstanceGroup(kind=ModelInstanceGroup.KIND_CPU, count=1 << 20)
    texts.all += [each.message for each in count_problems(ModelConfig(name="m", instance_group=[group]))]
    texts.all += [orjson.dumps(readiness(engine_down("it has ended").phase)).decode()]
    SizeLimits(0, 0).check_request(2_000_000)
    exhausted = "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer of size 9"
    texts.raised_by(_raise, failure_of(RuntimeError(exhausted), "m"))


def provoke_scheduling(texts: ProvokedTexts, folder: Path) -> None:
    policy = QueuePolicy(max_queue_size=1, default_timeout_ns=1)
    queue = RequestQueue(BatchingSpec(preferred_batch_sizes=(1,), default_policy=policy))
    queue.push(pending_request(enqueue_ns=1))
    texts.raised_by(queue.push, pending_request())
    _, rejections = queue.candidates(1, 10)
    for rejection in rejections:
        texts.raised_by(_raise, rejection.error)


# --- Models and requests for them


def _input(name: str, data_type: str = "TYPE_INT32", dims: int = 16) -> str:
    return f'input {{ name: "{name}" data_type: {data_type} dims: [ {dims} ] }} '


def _target(milliseconds: str) -> str:
    return f'parameters {{ key: "TARGET_P99_MS" value {{ string_value: "{milliseconds}" }} }}'


def _ensemble(*models: str) -> str:
    """An ensemble of INT32 whose steps run one after the other."""
    steps = " ".join(
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT0" value: "T{n}" }} '
        f'output_map {{ key: "OUTPUT0" value: "T{n + 1}" }} }},'
        for n, model in enumerate(models)
    )
    output = f'output {{ name: "T{len(models)}" data_type: TYPE_INT32 dims: [ 16 ] }} '
    return f'platform: "ensemble" {_input("T0")}{output}ensemble_scheduling {{ step [ {steps.removesuffix(",")} ] }}'


FULL = 'backend: "onnxruntime" max_batch_size: 8 ' + "".join(
    f'{side} {{ name: "{side.upper()}{n}" data_type: TYPE_INT32 dims: [ 16 ] }} '
    for side in ("input", "output")
    for n in range(2)
)
MODELS = {
    "typo": "max_batch_size: 8 inptu {}",
    "limited": 'instance_group { kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } }',
    "ensemble": _ensemble("nowhere", "damaged"),
    "ensemble_mixed": _ensemble("simple", "text"),
    "ensemble_unused": _ensemble("simple").replace("output_map", 'output_map { key: "OUTPUT1" value: "U" } output_map'),
    "unknown_backend": 'backend: "caffe2" max_batch_size: 8',
    "no_backend": 'default_model_filename: "foo.onnx" max_batch_size: 8',
    "runtime": 'runtime: "libtriton_mine.so" max_batch_size: 8',
    "escaping_runtime": 'runtime: "../libtriton_onnxruntime.so" max_batch_size: 8',
    "passive": "max_batch_size: 8 instance_group [ { kind: KIND_CPU passive: true } ]",
    "accelerated": "max_batch_size: 8 optimization { execution_accelerators { cpu_execution_accelerator "
    '[ { name: "openvinoo" } ] } }',
    "large_batch": "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 16 ] }",
    "fast_target": f"max_batch_size: 8 dynamic_batching {{ }} {_target('fast')}",
    "perhaps_waiting": "max_batch_size: 8 dynamic_batching { } "
    'parameters { key: "WAIT_OUT_QUEUE_DELAY" value { string_value: "perhaps" } }',
    "lone_target": f"max_batch_size: 8 {_target('20')}",
    "delayed_target": f"max_batch_size: 8 dynamic_batching {{ max_queue_delay_microseconds: 5 }} {_target('20')}",
    "decoupled_target": (
        f"max_batch_size: 8 dynamic_batching {{ }} {_target('20')} model_transaction_policy {{ decoupled: true }}"
    ),
    "named": 'name: "other" max_batch_size: 8',
    "missing_version": "max_batch_size: 8 version_policy { specific { versions: [ 7 ] } }",
    "other_file": 'max_batch_size: 8 default_model_filename: "weights.onnx" backend: "onnxruntime"',
    "inputs": "max_batch_size: 8 " + _input("INPUT0") + _input("INPUT1") + _input("X"),
    "datatype": "max_batch_size: 8 " + _input("INPUT0", "TYPE_FP32") + _input("INPUT1"),
    "dims": "max_batch_size: 8 " + _input("INPUT0", dims=8) + _input("INPUT1"),
    "names": "max_batch_size: 8 " + _input("INPUT0") + _input("X"),
    "warm": 'max_batch_size: 8 model_warmup [ { name: "w" batch_size: 1 inputs { key: "INPUT0" value '
    "{ data_type: TYPE_INT32 dims: [ 3 ] zero_data: true } } } ]",
    "decoupled": "max_batch_size: 8 model_transaction_policy { decoupled: true }",
    "simple": "max_batch_size: 8",
}


def tensor(name: str, values: Sequence[Any] = ONES, datatype: str = "INT32", shape: Sequence[int] = (1, 16)) -> Any:
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": list(values)}


FIRST = tensor("INPUT0")
BOTH = [FIRST, tensor("INPUT1")]
REFUSED: tuple[Any, ...] = (
    b"no JSON",
    b'{"inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "parameters": {"binary_data_size": 64}}]}',
    {},
    {"inputs": [FIRST]},
    {"inputs": [FIRST, tensor("X")]},
    {"inputs": BOTH, "outputs": [{"name": "X"}]},
    {"inputs": BOTH, "outputs": [{"name": "OUTPUT0", "parameters": {"shared_memory_region": "r"}}]},
    {"inputs": [FIRST, tensor("INPUT1", datatype="INT64")]},
    {"inputs": [FIRST, tensor("INPUT1", ONES[:8], shape=(1, 8))]},
    {"inputs": [FIRST, tensor("INPUT1", ONES * 2, shape=(2, 16))]},
    {"inputs": [tensor(name, ONES * 9, shape=(9, 16)) for name in ("INPUT0", "INPUT1")]},
    {"inputs": [FIRST, tensor("INPUT1", [1.5] * 16)]},
    {"inputs": [FIRST, tensor("INPUT1", datatype="float32")]},
    {"inputs": [FIRST, tensor("INPUT1", datatype="FP16")]},
)
INFER = "/v2/models/simple/infer"
SHORT = (
    b'{"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": [0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5]},'
    b'{"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "parameters": {"binary_data_size": 60}}]}'
)
TEXT = tensor("INPUT0", ["a"], "BYTES", (1, 1))
CLASSES = {"name": "OUTPUT0", "parameters": {"classification": 1}}


IN_SEQUENCE_CONFIG = (
    "max_batch_size: 8 instance_group { count: 1 kind: KIND_CPU } "
    "sequence_batching { max_sequence_idle_microseconds: 3600000000 "
    "oldest { max_candidate_sequences: 1 } control_input "
    '{ name: "INPUT1" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } }'
)
FIRST_IN_SEQUENCE = {"sequence_id": 1, "sequence_start": True}
IN_SEQUENCE: tuple[dict[str, Any], ...] = (
    {},
    {"sequence_id": 9},
    {"sequence_id": "x", "sequence_start": True},
    {"sequence_id": 2, "sequence_start": True, "timeout": 1},
    {"sequence_id": 3, "items": 2},
)


def write_models(folder: Path) -> Path:
    repository = folder / "models"
    for name, config in MODELS.items():
        onnx_models.write_version(onnx_models.add_sub(), repository, name, config)
    onnx_models.write_version(onnx_models.fixed(), repository, "unbatched", "max_batch_size: 8")
    onnx_models.write_version(onnx_models.classifier(), repository, "classifier")
    onnx_models.write_version(onnx_models.sequence_output(), repository, "sequence_output")
    onnx_models.write_version(onnx_models.fixed(), repository, "fixed")
    numbered = onnx_models.identity("UINT64", ("batch", 1), inputs=2)
    onnx_models.write_version(numbered, repository, "in_sequence", IN_SEQUENCE_CONFIG)
    declared = onnx_models.identity(shape=["batch", 3])
    declared.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx_models.write_version(declared, repository, "declared")
    onnx_models.write_version(onnx_models.identity("INT32"), repository, "golden")
    (repository / "golden" / "golden").mkdir()
    (repository / "golden" / "golden" / "g.json").write_text(GOLDEN)
    (repository / "nothing" / "1").mkdir(parents=True)
    (repository / "damaged" / "1").mkdir(parents=True)
    (repository / "damaged" / "1" / "model.onnx").write_text("version https://git-lfs.github.com/spec/v1")
    onnx_models.write_version(onnx_models.strings(), repository, "text")
    arena = 'parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "gpu:9" } }'
    onnx_models.write_version(onnx_models.identity(), repository, "arena", arena)
    onnx_models.write_version(onnx_models.identity(), repository, "twice")
    onnx_models.write_version(onnx_models.identity(), folder / "more", "twice")
    return repository


def provoke_models(texts: ProvokedTexts, folder: Path) -> None:
    """Provoke the texts of models that do not load, and of requests on every port."""
    with serving(write_models(folder), folder / "more") as engine:
        texts.all += [str(engine.repository_index(False)), str(engine.phase())]
        limited = V2Application(engine, HttpOptions(max_input_size=100), ThreadBridge())
        locked = parse_restricted(["inference:key=value"])
        plain = V2Application(engine, HttpOptions(), ThreadBridge())
        for body in REFUSED:
            texts.answered_by(plain, INFER, body)
        begun = {"inputs": [tensor("INPUT0", [1], "UINT64", (1, 1))], "parameters": FIRST_IN_SEQUENCE}
        assert HttpClient(plain).post("/v2/models/in_sequence/infer", json=begun).status_code == 200
        for marks in IN_SEQUENCE:
            items = marks.get("items", 1)
            inputs = [tensor("INPUT0", ONES[:items], "UINT64", (items, 1))]
            texts.answered_by(plain, "/v2/models/in_sequence/infer", {"inputs": inputs, "parameters": marks})
        texts.answered_by(limited, INFER, {"inputs": BOTH})
        texts.answered_by(V2Application(engine, HttpOptions(restricted=locked), ThreadBridge()), INFER)
        texts.answered_by(plain, INFER, SHORT + b"x" * 60, headers={"Inference-Header-Content-Length": str(len(SHORT))})
        texts.answered_by(plain, "/v2/models/text/infer", {"inputs": [TEXT], "outputs": [CLASSES]})
        guarded = V2Application(
            engine, HttpOptions(tokens=AuthTokens(str(folder / "tokens"), Scope.ALL)), ThreadBridge()
        )
        for token in ("", "Bearer another-token-of-some-length"):
            texts.answered_by(guarded, INFER, headers={"Authorization": token})
        texts.answered_by(plain, INFER, b"x", headers={"Content-Encoding": "br"})
        texts.answered_by(limited, INFER, gzip.compress(b" " * 1000), headers={"Content-Encoding": "gzip"})
        texts.answered_by(plain, INFER, b"x", headers={"Content-Encoding": "gzip"})
        for path in (
            "/v2/models/none/infer",
            "/v2/models/simple/versions/9/infer",
            "/v2/models/damaged/infer",
            "/v2/models/damaged/versions/1/infer",
            "/v2/models/decoupled/infer",
            "/v2/repository/models/simple/load",
            "/v2/systemsharedmemory/region/r/register",
        ):
            texts.answered_by(plain, path, {"inputs": BOTH})
        generate = "/v2/models/simple/generate"
        texts.answered_by(plain, generate, {"INPUT0": 1})
        texts.answered_by(plain, generate, b"x", headers={"Content-Encoding": "gzip"})
        texts.answered_by(plain, "/v2/systemsharedmemory/region/r/status", method="GET")
        provoke_regions(texts, engine)
        texts.answered_by(plain, "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
        texts.answered_by(plain, "/v2/trace/setting", {"trace_level": ["OFF", "TENSORS"]})
        texts.answered_by(plain, "/v2/trace/setting", {"trace_file": "x"})
        texts.answered_by(plain, "/v2/logging", {"log_file": "x"})
        provoke_sagemaker(texts, engine, folder)
        provoke_vertex(texts, engine)
    texts.answered_by(plain, "/v2/health/ready", method="GET")


def provoke_regions(texts: ProvokedTexts, engine: InferenceEngine) -> None:
    application = V2Application(engine, HttpOptions(allow_client_shm=True), ThreadBridge())
    with shared_memory_object(64) as key:
        engine.register_system_region("taken", key, 0, 64)
        register = "/v2/systemsharedmemory/region/{}/register"
        for name, given, size in (("r", "/none", 8), ("r", key, 65), ("taken", key, 64)):
            texts.answered_by(application, register.format(name), {"key": given, "byte_size": size})
        outside = {"shared_memory_region": "taken", "shared_memory_offset": 64}
        outputs = [{"name": "OUTPUT0", "parameters": outside}]
        texts.answered_by(application, INFER, {"inputs": BOTH, "outputs": outputs})


def provoke_sagemaker(texts: ProvokedTexts, engine: InferenceEngine, folder: Path) -> None:
    models = folder / "models"

    def application(memory: MemoryBudget | None = None, **settings: Any) -> SageMakerApplication:
        settings = {"models_root": str(folder), **settings}
        chosen = SageMakerSettings(**settings)
        return SageMakerApplication(engine, HttpOptions(), ThreadBridge(), chosen, bytes, memory=memory)

    texts.raised_by(read_layout, str(folder / "none"))
    texts.raised_by(read_layout, str(models / "simple" / "1" / "none"))
    texts.raised_by(read_layout, str(models / "nothing" / "1"))
    texts.raised_by(read_layout, str(models))
    texts.raised_by(read_layout, str(models), "none")
    one = application(default_model="simple")
    many = application(MemoryBudget(lambda: MemoryState(1, 1)), multi_model=True)
    texts.answered_by(one, "/models")
    texts.answered_by(many, "/invocations")
    texts.answered_by(one, "/invocations", b"x", headers={"Content-Type": "image/png"})
    texts.answered_by(one, "/invocations", b"1", headers={"Content-Type": "text/csv", "Accept": "image/png"})
    texts.answered_by(one, "/invocations", b"", headers={"Content-Type": "text/csv"})
    texts.answered_by(one, "/v2/models/simple/infer")
    onnx_models.write(onnx_models.add_sub(), folder / "hash" / "model" / "1" / "model.onnx")
    texts.answered_by(many, "/models", {"model_name": "big", "url": f"{folder}/hash/model"})


def provoke_vertex(texts: ProvokedTexts, engine: InferenceEngine) -> None:
    def application(**settings: Any) -> VertexApplication:
        chosen = VertexSettings(predict_route="/predict", health_route="/health", **settings)
        return VertexApplication(engine, HttpOptions(), ThreadBridge(), chosen, bytes)

    texts.answered_by(application(), "/predict", {"instances": [1]})
    texts.answered_by(application(), "/nowhere")
    texts.answered_by(application(default_model="simple"), "/predict", {"rows": [1]})
    texts.answered_by(application(default_model="simple", max_request_size=9), "/predict", {"instances": [1]})
    events = {"Accept": "text/event-stream"}
    simple = {"INPUT0": [1] * 16, "INPUT1": [1] * 16}
    texts.answered_by(application(default_model="simple"), "/predict", {"instances": [simple] * 9}, headers=events)
    texts.answered_by(application(default_model="simple"), "/predict", {"inputs": BOTH}, headers=events)
    for target in ("v2/repository/models/simple/load", "nowhere"):
        texts.answered_by(application(), "/predict", headers={"X-Vertex-Ai-Triton-Redirect": target})
    texts.raised_by(Deadline(0, None))


def provoke_grpc(texts: ProvokedTexts, folder: Path) -> None:
    """Calls that gRPC itself refuses, and requests that are wrong in ways that HTTP does not have."""

    def chatty(request: InferenceRequest) -> InferenceResponse | None:
        return None if request.id == "late" else InferenceResponse("simple", 1, [], id=request.id)

    class Chatty(FakeEngine):
        def submit(self, pending: PendingRequest) -> None:
            if pending.request.id == "twice":
                pending.on_response(InferenceResponse("simple", 1, [], id="twice", final=False))
                pending.on_response(InferenceResponse("simple", 1, [], id="twice", final=False))
            super().submit(pending)

    mixed, missing = (ModelInferRequest.FromString(infer_request()) for _ in range(2))
    mixed.inputs[0].contents.int_contents.append(1)
    del missing.raw_input_contents[:]

    def provoke(client: Client) -> None:
        def note(stream: ClientStream) -> None:
            until(lambda: stream.releases)
            texts.all += [stream.trailers.get("grpc-message", ""), bytes(stream.body).decode("latin-1")]
            texts.all.append(stream.message)

        for method, metadata in (
            ("Nope", {}),
            ("ServerMetadata", {}),
            ("ServerLive", {"grpc-encoding": "br"}),
            ("ServerLive", {"grpc-timeout": "x"}),
            ("ServerLive", {"content-type": "application/json"}),
        ):
            note(client.end(client.begin(method, metadata)))
        for pieces in ([], [frame(b"", 2)], [frame(b"", 1)], [b"\0"], [frame(b"x" * 2000)]):
            note(client.end(client.feed(client.begin("ModelInfer"), *pieces)))
        note(client.end(client.feed(client.begin("ModelInfer", {"grpc-encoding": "gzip"}), frame(b"x", 1))))
        for message in (b"\xff", mixed.SerializeToString(), missing.SerializeToString(), infer_request("twice")):
            note(client.send("ModelInfer", message))
        note(client.send("ModelInfer", infer_request("late"), {"grpc-timeout": "1m"}))
        unfinished = [client.feed(client.begin("ModelInfer"), frame(b"x" * 900)[:800]) for _ in range(3)]
        note(unfinished[-1])
        for stream in unfinished:
            client.end(stream)
        client.application.begin_exit()
        note(client.send("ModelStreamInfer", infer_request()))

    restricted = parse_restricted(["metadata:key=value"], GRPC)
    options = GrpcOptions(max_message_size=1000, max_unfinished_size=1000, restricted=restricted)
    with_client(Chatty(chatty), provoke, options)


def provoke_control(texts: ProvokedTexts, folder: Path) -> None:
    """Provoke the texts of impossible load requests."""
    repository = folder / "controlled"
    repository.mkdir()
    onnx_models.write_version(onnx_models.add_sub(), repository, "sequence", "sequence_batching { control_input {} }")
    (repository / "damaged" / "1").mkdir(parents=True)
    (repository / "damaged" / "1" / "model.onnx").write_text("damaged")
    (repository / "silent" / "1").mkdir(parents=True)
    with serving(repository, control_mode="explicit", auto_complete=False) as engine:
        plain = V2Application(engine, HttpOptions(), ThreadBridge())
        for name in ("none", "sequence", "damaged", "silent"):
            texts.answered_by(plain, f"/v2/repository/models/{name}/load")
        texts.answered_by(plain, "/v2/repository/models/m/load", {"parameters": {"file:1/model.onnx": "QQ=="}})
        for default in ("", "none"):
            settings = VertexSettings(predict_route="/predict", health_route="/health", default_model=default)
            vertex = VertexApplication(engine, HttpOptions(), ThreadBridge(), settings, bytes)
            texts.answered_by(vertex, "/predict", {"instances": [1]})
            texts.answered_by(vertex, "/health", method="GET")
        loaded = LoadedModels(engine, str(folder), MemoryBudget(lambda: None))
        (folder / "hash" / "model" / "config.pbtxt").write_text(FULL)
        loaded.load("hash", f"{folder}/hash/model")
        texts.raised_by(loaded.load, "hash", f"{folder}/hash/model")
        with loaded.invocation("hash", "cats.tar.gz"):
            pass
        loaded.unload("hash")
        texts.answered_by(plain, "/v2/models/hash/infer")
        refusing = FakeEngine()
        loaded = LoadedModels(refusing, str(folder), MemoryBudget(lambda: None))
        loaded.load("hash", f"{folder}/hash/model")
        refusing.refusal = ServerStopping("no")
        texts.raised_by(loaded.unload, "hash")
        texts.answered_by(plain, "/v2/repository/models/damaged/load", {"parameters": {"config": COMPLETE}})


def provoked_texts(folder: Path) -> str:
    """All texts as one; takes a few seconds. Models and files go into `folder`."""
    texts = ProvokedTexts()
    logger = logging.getLogger("trident")
    level = logger.level
    logger.addHandler(texts)
    logger.setLevel(logging.INFO)
    try:
        for provoke in (
            provoke_options,
            provoke_limits,
            provoke_again,
            provoke_storage,
            provoke_processes,
            provoke_scheduling,
            provoke_models,
            provoke_grpc,
            provoke_control,
        ):
            provoke(texts, folder)
    finally:
        close_log()
        logger.setLevel(level)
        logger.removeHandler(texts)
    return "\n".join(texts.all)
