"""The server's own texts, provoked by faults: errors, answers and log lines of real parts, as one text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from tritonclient.grpc.service_pb2 import ModelInferRequest
from werkzeug.test import Client as HttpClient

from tests.unit import onnx_models
from tests.unit.core.engine.test_in_process import serving
from tests.unit.core.grpc.grpc_client import Client, ClientStream, frame, with_client
from tests.unit.core.grpc.infer_messages import infer_request
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
from trident.adapters.vertex.endpoint import SizeLimits
from trident.adapters.vertex.settings import VertexSettings
from trident.app.settings.reading import read_settings
from trident.app.supervisor.engine_child import EngineChild
from trident.app.worker.http1 import request as refusal
from trident.app.worker.listening_sockets import open_listener
from trident.core.backends.onnxruntime.providers import CPU, CUDA, ProviderRequest, check_active
from trident.core.backends.onnxruntime.session import failure_of
from trident.core.config.autocomplete import instance_group_problems
from trident.core.config.schema import ModelConfig, ModelInstanceGroup
from trident.core.config.spec import BatchingSpec, QueuePolicy
from trident.core.engine.in_process import InferenceEngine
from trident.core.errors import ServerStopping
from trident.core.frontend.access import GRPC, parse_restricted
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
from trident.core.observability.log import close_log
from trident.core.remote.calls import engine_down
from trident.core.repository.stores.s3 import S3Call
from trident.core.scheduling.queue import RequestQueue

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


def provoke_options(texts: ProvokedTexts, folder: Path) -> None:
    repository = "--model-repository=/models"
    for arguments, environ in (
        ([], {}),
        (["--http-prot=1"], {}),
        ([], {"TRIDENT_HTTP_PROT": "1"}),
        (["--allow-sagemaker=true", "--sagemaker-safe-port-range=9000-9010", repository], {}),
    ):
        texts.raised_by(read_settings, arguments, environ)
    with open_listener("127.0.0.1", 0) as listener:
        texts.raised_by(open_listener, "127.0.0.1", listener.getsockname()[1])
    texts.raised_by(open_listener, "192.0.2.1", 0)  # an address that no machine has
    texts.all += [refusal.PLAIN_TEXT, refusal.NO_MEMORY.format(10), message_of(ValueError("a fault"))]


def provoke_storage(texts: ProvokedTexts, folder: Path) -> None:
    listing = S3Call("s3:ListBucket", "s3://zoo/production", "zoo", opening=True)
    reading = S3Call("s3:GetObject", "s3://zoo/production/m/1/model.onnx", "zoo", "production/m/1/model.onnx")
    texts.raised_by(_raise, listing.refused("me", "AccessDenied", "Access Denied"))
    texts.raised_by(_raise, reading.failed("me", "NoSuchBucket", "there is none"))


def _raise(error: Exception) -> None:
    raise error


def provoke_processes(texts: ProvokedTexts, folder: Path) -> None:
    for code in (-9, -11, 3):
        EngineChild(lambda: 0, lambda: None).ended(code)
    requests = [ProviderRequest(CUDA, {}), ProviderRequest(CPU, {})]
    texts.raised_by(check_active, requests, [CPU], "libcudnn.so.9", "m")
    group = ModelInstanceGroup(name="m_0", kind=ModelInstanceGroup.KIND_GPU)
    for gpus in ((), None):
        texts.all += [each.message for each in instance_group_problems(ModelConfig(instance_group=[group]), "m", gpus)]
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


def _ensemble(*models: str) -> str:
    """An ensemble of INT32 whose steps run one after the other."""
    steps = " ".join(
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT0" value: "T{n}" }} '
        f'output_map {{ key: "OUTPUT0" value: "T{n + 1}" }} }},'
        for n, model in enumerate(models)
    )
    output = f'output {{ name: "T{len(models)}" data_type: TYPE_INT32 dims: [ 16 ] }} '
    tensors = f'input {{ name: "T0" data_type: TYPE_INT32 dims: [ 16 ] }} {output}'
    return f'platform: "ensemble" {tensors}ensemble_scheduling {{ step [ {steps.removesuffix(",")} ] }}'


FULL = 'backend: "onnxruntime" max_batch_size: 8 ' + "".join(
    f'{side} {{ name: "{side.upper()}{n}" data_type: TYPE_INT32 dims: [ 16 ] }} '
    for side in ("input", "output")
    for n in range(2)
)
MODELS = {
    "ensemble": _ensemble("nowhere", "damaged"),
    "unknown_backend": 'backend: "caffe2" max_batch_size: 8',
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
    {"inputs": [FIRST, tensor("INPUT1", datatype="INT64")]},
    {"inputs": [FIRST, tensor("INPUT1", ONES[:8], shape=(1, 8))]},
    {"inputs": [FIRST, tensor("INPUT1", ONES * 2, shape=(2, 16))]},
    {"inputs": [tensor(name, ONES * 9, shape=(9, 16)) for name in ("INPUT0", "INPUT1")]},
    {"inputs": [FIRST, tensor("INPUT1", [1.5] * 16)]},
)
INFER = "/v2/models/simple/infer"
SHORT = (
    b'{"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": [0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5]},'
    b'{"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "parameters": {"binary_data_size": 60}}]}'
)


IN_SEQUENCE_CONFIG = (
    "max_batch_size: 8 instance_group { count: 1 kind: KIND_CPU } "
    "sequence_batching { max_sequence_idle_microseconds: 3600000000 "
    "oldest { max_candidate_sequences: 1 } control_input "
    '{ name: "INPUT1" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } }'
)
FIRST_IN_SEQUENCE = {"sequence_id": 1, "sequence_start": True}
IN_SEQUENCE: tuple[dict[str, Any], ...] = ({"sequence_id": 2, "sequence_start": True, "timeout": 1},)


def write_models(folder: Path) -> Path:
    repository = folder / "models"
    for name, config in MODELS.items():
        onnx_models.write_version(onnx_models.add_sub(), repository, name, config)
    onnx_models.write_version(onnx_models.sequence_output(), repository, "sequence_output")
    numbered = onnx_models.identity("UINT64", ("batch", 1), inputs=2)
    onnx_models.write_version(numbered, repository, "in_sequence", IN_SEQUENCE_CONFIG)
    onnx_models.write_version(onnx_models.identity("INT32"), repository, "golden")
    (repository / "golden" / "golden").mkdir()
    (repository / "golden" / "golden" / "g.json").write_text(GOLDEN)
    (repository / "nothing" / "1").mkdir(parents=True)
    (repository / "damaged" / "1").mkdir(parents=True)
    (repository / "damaged" / "1" / "model.onnx").write_text("version https://git-lfs.github.com/spec/v1")
    onnx_models.write_version(onnx_models.strings(), repository, "text")
    onnx_models.write_version(onnx_models.identity(), repository, "twice")
    onnx_models.write_version(onnx_models.identity(), folder / "more", "twice")
    return repository


def provoke_models(texts: ProvokedTexts, folder: Path) -> None:
    """Provoke the texts of models that do not load, and of requests on every port."""
    with serving(write_models(folder), folder / "more") as engine:
        texts.all += [str(engine.repository_index(False)), str(engine.phase())]
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
        texts.answered_by(V2Application(engine, HttpOptions(restricted=locked), ThreadBridge()), INFER)
        texts.answered_by(plain, INFER, SHORT + b"x" * 60, headers={"Inference-Header-Content-Length": str(len(SHORT))})
        for path in (
            "/v2/models/none/infer",
            "/v2/models/damaged/infer",
            "/v2/models/damaged/versions/1/infer",
            "/v2/models/decoupled/infer",
        ):
            texts.answered_by(plain, path, {"inputs": BOTH})
        generate = "/v2/models/simple/generate"
        texts.answered_by(plain, generate, {"INPUT0": 1})
        provoke_regions(texts, engine)
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
    many = application(MemoryBudget(lambda: MemoryState(1, 1)), multi_model=True)
    onnx_models.write(onnx_models.add_sub(), folder / "hash" / "model" / "1" / "model.onnx")
    texts.answered_by(many, "/models", {"model_name": "big", "url": f"{folder}/hash/model"})


def provoke_vertex(texts: ProvokedTexts, engine: InferenceEngine) -> None:
    def application(**settings: Any) -> VertexApplication:
        chosen = VertexSettings(predict_route="/predict", health_route="/health", **settings)
        return VertexApplication(engine, HttpOptions(), ThreadBridge(), chosen, bytes)

    refused = {"X-Vertex-Ai-Triton-Redirect": "v2/repository/models/simple/load"}
    texts.answered_by(application(), "/predict", headers=refused)


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
            ("ServerMetadata", {}),
            ("ServerLive", {"content-type": "application/json"}),
        ):
            note(client.end(client.begin(method, metadata)))
        for pieces in ([], [frame(b"", 2)], [frame(b"", 1)], [b"\0"], [frame(b"x" * 2000)]):
            note(client.end(client.feed(client.begin("ModelInfer"), *pieces)))
        for message in (b"\xff", mixed.SerializeToString(), missing.SerializeToString(), infer_request("twice")):
            note(client.send("ModelInfer", message))
        note(client.send("ModelInfer", infer_request("late"), {"grpc-timeout": "1m"}))
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
