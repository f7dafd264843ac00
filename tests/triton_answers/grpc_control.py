"""The RPCs beside inference: state, metadata, repository, shared memory, settings; unknown and malformed calls."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.triton_answers import Answers, rpc

LOADED = ("simple", "multi_v", "cls")
MODEL_CALLS = ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics")
OPTIONS = ("--model-control-mode=explicit", *(f"--load-model={name}" for name in LOADED))
VERSIONS = ("", "1", "2", "3", "0", "-1", "x", "1x", " 1", "9223372036854775807", "99999999999999999999")


def refused(message: str, status: str = "INVALID_ARGUMENT") -> Answers:
    return {"status": status, "message": message}


def bad_version(version: str) -> Answers:
    return refused(
        f"failed to get model version from specified version string '{version}' (details: stol), "
        "version should be an integral value > 0"
    )


def log_levels(verbose: int) -> Answers:
    switches = {name: {"bool_param": True} for name in ("log_info", "log_warning", "log_error")}
    others = {"log_format": {"string_param": "default"}, "log_verbose_level": {"uint32_param": verbose}}
    return {"settings": switches | others}


def trace_levels(**changed: str) -> Answers:
    levels = {"trace_level": "OFF", "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0"}
    levels |= {"trace_file": "", "trace_mode": "triton"} | changed
    return {"settings": {name: {"value": [value]} for name, value in levels.items()}}


TELLS_MORE = "Triton's text is empty"
NEWER = "as newer releases"
WHOLE_TEXT = "texts and numbers are read to their ends, past a NUL or a letter"
NOT_IGNORED = "unknown settings and values are not ignored"
NO_WRAP = "numbers do not wrap around"
CONFIG_MISSING = refused("Load parameter 'config' must be specified for model file override")
NO_SIMPLE = refused("Request for unknown model: 'simple\0' is not found", "NOT_FOUND")
SERVICE = "/inference.GRPCInferenceService/"
UNKNOWN_METHODS = (
    f"{SERVICE}Other",
    f"{SERVICE}modelinfer",
    "/inference.Other/ModelInfer",
    "/ModelInfer",
    "/",
    "/a/b/c",
)
OUT_OF_RANGE = "Unable to parse '{}', value is out of range [ 0, 4294967295 ], got: {}"
OUTSIDE = "Invalid file parameter '{}' with normalized path '{}' must stay within model directory."
OTHERWISE: dict[str, tuple[str, Any]] = {
    **{
        f"no_call: {path}": (TELLS_MORE, refused(f"unknown method {path}", "UNIMPLEMENTED")) for path in UNKNOWN_METHODS
    },
    **{
        f"models: {call} multi_v {version!r}": (WHOLE_TEXT, bad_version(version))
        for call in MODEL_CALLS
        for version in ("1x", " 1")
    },
    "models: ModelReady 'simple\\x00'": (WHOLE_TEXT, {}),
    "models: ModelMetadata 'simple\\x00'": (WHOLE_TEXT, NO_SIMPLE),
    "models: ModelConfig 'simple\\x00'": (WHOLE_TEXT, NO_SIMPLE),
    "models: ModelStatistics 'simple\\x00'": (WHOLE_TEXT, refused("requested model 'simple\0' is not available")),
    "repository: load of no name": (
        NEWER,
        refused("Model name cannot be empty. Please enter a valid name to deploy."),
    ),
    "repository: load file bytes": (NEWER, CONFIG_MISSING),
    "repository: load file without config": (NEWER, CONFIG_MISSING),
    "repository: load file without a path": (NEWER, refused(OUTSIDE.format("file:", "."))),
    "repository: load file outside": (NEWER, refused(OUTSIDE.format("file:../1/model.onnx", "../1/model.onnx"))),
    "shared_memory: input size 0": (
        NEWER,
        refused(
            "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'simple'. "
            "Expected 64, got 0"
        ),
    ),
    "shared_memory: output size 0": (
        NEWER,
        refused(
            "shared memory size specified with the request for output 'OUTPUT0' (0 bytes) should be at least 64 bytes "
            "to hold the results",
            "INTERNAL",
        ),
    ),
    "shared_memory: register no key": (NEWER, refused("cannot register shared memory region 'c' - invalid shm key ''")),
    "shared_memory: register only slashes": (
        NEWER,
        refused("cannot register shared memory region 'c' - invalid shm key '//'"),
    ),
    "shared_memory: register reserved key": (
        NEWER,
        refused(
            "cannot register shared memory region 'c' with key '/triton_python_backend_shm_region_1' as the key "
            "contains the reserved prefix 'triton_python_backend_shm_region_'"
        ),
    ),
    **{
        f"log_settings: other={kind}": (NOT_IGNORED, refused("unknown log setting 'other'"))
        for kind in ("None", "bool_param: true", "uint32_param: 0", 'string_param: "default"')
    },
    **{
        f"log_settings: log_verbose_level=uint32_param: {number}": (NO_WRAP, log_levels(number))
        for number in (2**31, 2**32 - 1)
    },
    "trace_settings: 'simple\\x00' ": (WHOLE_TEXT, refused("Request for unknown model : simple\0")),
    "trace_settings: 'simple\\x00' trace_rate=['1']": (WHOLE_TEXT, refused("Request for unknown model : simple\0")),
    "trace_settings: '' other=['1']": (NOT_IGNORED, refused("unknown trace setting 'other'")),
    "trace_settings: '' trace_mode=['opentelemetry']": (
        NOT_IGNORED,
        refused("'trace_mode' can not be updated through network protocol", "UNIMPLEMENTED"),
    ),
    **{
        f"trace_settings: '' trace_level=['{level}']": (NOT_IGNORED, refused(f"unknown trace level '{level}'"))
        for level in ("MAX", "off", "")
    },
    **{
        f"trace_settings: '' {key}=['{value}']": (WHOLE_TEXT, refused(f"Unable to parse '{key}', got: {value}"))
        for key in ("trace_rate", "trace_count", "log_frequency")
        for value in ("7x", "1.5")
    },
    **{
        f"trace_settings: '' {key}=['{value}']": (NO_WRAP, refused(OUT_OF_RANGE.format(key, value)))
        for key in ("trace_rate", "log_frequency")
        for value in ("-1", "-2")
    },
    **{
        f"trace_settings: '' {key}=['2147483648']": (
            "the range is as the text says",
            trace_levels(**{key: "2147483648"}),
        )
        for key in ("trace_rate", "log_frequency")
    },
}


def write_models(folder: Path) -> None:
    for name in (*LOADED, "str_id", "auto_nobatch"):
        shutil.copytree(ROOT / "tests" / "golden" / "models" / name, folder / name)
    # In Triton, too, a folder that is not a model is one.
    (folder / "empty").mkdir()


def ask(server: ServerProcess, call: str, /, **fields: Any) -> Any:
    message = getattr(pb, f"{call}Request")(**fields)
    text = json.dumps(rpc(server, call, message)).replace(server.location, "REPOSITORY")
    return json.loads(text)


def add(answers: Answers, title: str, answer: Any) -> None:
    """Note an answer by its title, which may be there already."""
    while title in answers:
        title += ", again"
    answers[title] = answer


def raw_call(server: ServerProcess, path: str, content: bytes, **metadata: str) -> Any:
    """The answer to a message that may not be one, in hexadecimal."""
    with grpc.insecure_channel(f"{HOST}:{server.grpc_port}") as channel:
        call = channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        try:
            return call(content, timeout=60, metadata=tuple(metadata.items())).hex()
        except grpc.RpcError as error:
            return {"status": error.code().name, "message": error.details()}  # type: ignore[attr-defined]


def ask_server(server: ServerProcess) -> Answers:
    answers = {name: ask(server, name) for name in ("ServerLive", "ServerReady", "ServerMetadata")}
    answers["ServerMetadata"].pop("version")
    return answers


def ask_health(server: ServerProcess) -> Answers:
    services = {
        "none": b"",
        "ours": b"\n\x1einference.GRPCInferenceService",
        "other": b"\n\5other",
        "cut off": b"\n\5",
        "not UTF-8": b"\n\1\xff",
    }
    return {name: raw_call(server, "/grpc.health.v1.Health/Check", content) for name, content in services.items()}


def ask_no_call(server: ServerProcess) -> Answers:
    answers = {path: raw_call(server, path, b"") for path in UNKNOWN_METHODS}
    for name in (
        "ModelInfer",
        "ServerLive",
        "ModelReady",
        "RepositoryIndex",
        "LogSettings",
        "SystemSharedMemoryStatus",
    ):
        # A field that is cut off, a wire type that there is not, text that is not UTF-8.
        for content in (b"\n\5a", b"\x0f\1", b"\n\1\xff"):
            answers[f"{name} {content!r}"] = raw_call(server, SERVICE + name, content)
    return answers


def ask_models(server: ServerProcess) -> Answers:
    answers: Answers = {}
    for call in MODEL_CALLS:
        for version in VERSIONS:
            answers[f"{call} multi_v {version!r}"] = ask(server, call, name="multi_v", version=version)
        for name in ("simple", "cls", "str_id", "missing", "", "Simple", "simple\0", "empty"):
            answers[f"{call} {name!r}"] = ask(server, call, name=name)
        for version in ("1", "x"):
            answers[f"{call} missing {version}"] = ask(server, call, name="missing", version=version)
    return {name: steady(answer) for name, answer in answers.items()}


def steady(answer: Any) -> Any:
    """An answer without its times."""
    if isinstance(answer, dict):
        return {key: steady(each) for key, each in answer.items() if key not in ("ns", "last_inference")}
    return [steady(each) for each in answer] if isinstance(answer, list) else answer


def ask_statistics(server: ServerProcess) -> Answers:
    row = np.arange(16, dtype=np.int32).tobytes()

    def infer(shape: list[int], raw: bytes, **fields: Any) -> None:
        inputs = [
            pb.ModelInferRequest.InferInputTensor(name=name, datatype="INT32", shape=shape)
            for name in ("INPUT0", "INPUT1")
        ]
        rpc(
            server,
            "ModelInfer",
            pb.ModelInferRequest(model_name="simple", inputs=inputs, raw_input_contents=[raw, raw], **fields),
        )

    for rows in (1, 1, 3):
        infer([rows, 16], row * rows)
    infer([9, 16], row * 9)
    infer([1, 16], row, parameters={"timeout": pb.InferParameter(string_param="a")})
    infer([1, 16], row[:60])
    return {"simple": steady(ask(server, "ModelStatistics", name="simple", version="1"))}


def parameter(**choice: Any) -> Any:
    return pb.ModelRepositoryParameter(**choice)


KINDS: dict[str, Any] = {
    "none": parameter(),
    "bool": parameter(bool_param=True),
    "int64": parameter(int64_param=7),
    "string": parameter(string_param="seven"),
    "bytes": parameter(bytes_param=b"seven"),
}


def ask_repository(server: ServerProcess) -> Answers:
    answers: Answers = {}

    def then(title: str, call: str, /, **fields: Any) -> None:
        add(answers, title, ask(server, call, **fields))

    def load(name: str, model: str, **parameters: Any) -> None:
        then(f"load {name}", "RepositoryModelLoad", model_name=model, parameters=parameters)

    def unload(name: str, model: str, **parameters: Any) -> None:
        then(f"unload {name}", "RepositoryModelUnload", model_name=model, parameters=parameters)

    model = (Path(server.location) / "str_id" / "1" / "model.onnx").read_bytes()
    config = {
        "backend": "onnxruntime",
        "max_batch_size": 4,
        "input": [{"name": "IN", "data_type": "TYPE_STRING", "dims": [2]}],
        "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [2]}],
    }
    then("index", "RepositoryIndex")
    then("ready index", "RepositoryIndex", ready=True)
    for call in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"):
        then(f"{call} of a repository", call, repository_name="own")
    load("missing", "missing")
    load("of no name", "")
    load("empty", "empty")
    load("str_id", "str_id")
    load("again", "str_id")
    for kind, value in KINDS.items():
        load(f"config {kind}", "str_id", config=value)
        load(f"file {kind}", "str_id", **{"file:1/model.onnx": value})
        load(f"other {kind}", "str_id", other=value)
        unload(f"dependents {kind}", "missing", unload_dependents=value)
    for name, text in (
        ("whole", json.dumps(config)),
        ("small", json.dumps({"max_batch_size": 2})),
        ("of another name", json.dumps(config | {"name": "other"})),
        ("unknown field", json.dumps(config | {"other": 1})),
        ("wrong value", json.dumps(config | {"max_batch_size": "many"})),
        ("no object", "[]"),
        ("empty object", "{}"),
        ("not JSON", "{"),
        ("empty", ""),
    ):
        load(f"config {name}", "str_id", config=parameter(string_param=text))
        then(f"config {name}: metadata", "ModelMetadata", name="str_id")
    load("file without config", "str_id", **{"file:1/model.onnx": parameter(bytes_param=model)})
    whole = parameter(string_param=json.dumps(config))
    load("files", "made", config=whole, **{"file:1/model.onnx": parameter(bytes_param=model)})
    then("files: metadata", "ModelMetadata", name="made")
    load("file of no version", "made2", config=whole, **{"file:model.onnx": parameter(bytes_param=model)})
    load("file without a path", "made3", config=whole, **{"file:": parameter(bytes_param=model)})
    load("file outside", "made4", config=whole, **{"file:../1/model.onnx": parameter(bytes_param=model)})
    load("config of a model that is not there", "made5", config=whole)
    unload("missing", "missing")
    unload("of no name", "")
    unload("str_id", "str_id")
    unload("again", "str_id")
    unload("made", "made", unload_dependents=KINDS["bool"])
    then("metadata after unload", "ModelMetadata", name="made")
    return answers


PAGE = os.sysconf("SC_PAGE_SIZE")


def ask_shared_memory(server: ServerProcess) -> Answers:
    # Triton fails to register an object twice.
    keys = {name: f"/triton-answers-{os.getpid()}-{name}" for name in "abcdefg"}
    for each in keys.values():
        Path(f"/dev/shm{each}").write_bytes(np.arange(2 * PAGE // 4, dtype=np.int32).tobytes())
    answers: Answers = {}

    def then(title: str, call: str, /, **fields: Any) -> None:
        answer = json.dumps(ask(server, call, **fields)).replace(f"triton-answers-{os.getpid()}-", "KEY-")
        add(answers, title, json.loads(answer))

    def register(name: str, region: str, key: str = keys["c"], offset: int = 0, size: int = 128) -> None:
        fields = {"name": region, "key": key, "offset": offset, "byte_size": size}
        then(f"register {name}", "SystemSharedMemoryRegister", **fields)

    def status(name: str = "", kind: str = "System") -> None:
        then(f"{kind} status {name}", f"{kind}SharedMemoryStatus", name=name)

    def unregister(name: str = "", kind: str = "System") -> None:
        then(f"{kind} unregister {name}", f"{kind}SharedMemoryUnregister", name=name)

    try:
        for kind in ("System", "Cuda"):
            status(kind=kind)
            status("missing", kind)
            unregister("missing", kind)
            unregister(kind=kind)
        register("whole", "a", keys["a"], size=2 * PAGE)
        register("a page", "b", keys["b"], size=PAGE)
        register("the second page", "late", keys["f"], offset=PAGE, size=PAGE)
        register("the same", "a")
        status()
        status("a")
        status("a", "Cuda")
        status(kind="Cuda")
        unregister("a", "Cuda")
        status("a")
        for name, arguments in (
            ("no key", {"region": "c", "key": ""}),
            ("only slashes", {"region": "c", "key": "//"}),
            ("without a slash", {"region": "slash", "key": keys["d"][1:]}),
            ("two slashes", {"region": "slashes", "key": "/" + keys["e"]}),
            ("a folder", {"region": "c", "key": "/a/b"}),
            ("missing key", {"region": "c", "key": "/triton-answers-missing"}),
            ("reserved key", {"region": "c", "key": "/triton_python_backend_shm_region_1"}),
            ("too large", {"region": "c", "size": 2 * PAGE + 1}),
            ("beyond the end", {"region": "c", "offset": 2 * PAGE, "size": 1}),
            ("no size", {"region": "c", "size": 0}),
            ("odd offset", {"region": "c", "offset": 4, "size": 4}),
            ("huge size", {"region": "c", "size": 2**64 - 1}),
            ("huge offset", {"region": "c", "offset": 2**63, "size": 8}),
            ("ä", {"region": "ä", "key": keys["g"]}),
        ):
            register(name, **arguments)  # type: ignore[arg-type]
        status()
        infer_with_regions(server, then)
        unregister("b")
        status("b")
        unregister()
        status()
    finally:
        for each in keys.values():
            Path(f"/dev/shm{each}").unlink()
    return answers


def place(**choices: Any) -> dict[str, Any]:
    """Parameters of a tensor; those of integers and strings by their values."""
    return {
        f"shared_memory_{name}": value
        if isinstance(value, pb.InferParameter)
        else pb.InferParameter(**{"string_param" if isinstance(value, str) else "int64_param": value})
        for name, value in choices.items()
    }


def infer_with_regions(server: ServerProcess, then: Any) -> None:
    row = np.arange(16, dtype=np.int32).tobytes()
    a_string, a_number, nothing = (
        pb.InferParameter(string_param="64"),
        pb.InferParameter(int64_param=1),
        pb.InferParameter(),
    )
    a_flag, unsigned = pb.InferParameter(bool_param=True), pb.InferParameter(uint64_param=64)
    places: dict[str, dict[str, Any]] = {
        "in a": place(region="a", byte_size=64),
        "at 64": place(region="a", byte_size=64, offset=64),
        "at 1": place(region="a", byte_size=64, offset=1),
        "in b": place(region="b", byte_size=64),
        "region missing": place(region="missing", byte_size=64),
        "region unnamed": place(region="", byte_size=64),
        "no size": place(region="a"),
        "no region": place(byte_size=64),
        "an offset alone": place(offset=64),
        "offset and size": place(offset=64, byte_size=64),
        "too small": place(region="a", byte_size=60),
        "too large": place(region="a", byte_size=68),
        "size 0": place(region="a", byte_size=0),
        "negative size": place(region="a", byte_size=-1),
        "negative offset": place(region="a", byte_size=64, offset=-64),
        "offset at the end": place(region="b", byte_size=64, offset=PAGE),
        "beyond the end": place(region="b", byte_size=64, offset=PAGE - 63),
        "huge offset": place(region="b", byte_size=64, offset=2**63 - 1),
        "region is a number": place(region=a_number, byte_size=64),
        "region is nothing": place(region=nothing, byte_size=64),
        "size is a string": place(region="a", byte_size=a_string),
        "size is unsigned": place(region="a", byte_size=unsigned),
        "offset is a flag": place(region="a", byte_size=64, offset=a_flag),
        "size is a string, no region": place(byte_size=a_string),
    }
    for name, parameters in places.items():
        first = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16]}
        second = pb.ModelInferRequest.InferInputTensor(name="INPUT1", datatype="INT32", shape=[1, 16])
        given = pb.ModelInferRequest.InferInputTensor(**first, parameters=parameters)
        raw = [row] if "shared_memory_region" in parameters else [row, row]
        then(f"input {name}", "ModelInfer", model_name="simple", inputs=[given, second], raw_input_contents=raw)
        plain = pb.ModelInferRequest.InferInputTensor(**first)
        wanted = [
            pb.ModelInferRequest.InferRequestedOutputTensor(name="OUTPUT0", parameters=parameters),
            pb.ModelInferRequest.InferRequestedOutputTensor(name="OUTPUT1"),
        ]
        fields = {"inputs": [plain, second], "outputs": wanted, "raw_input_contents": [row, row]}
        then(f"output {name}", "ModelInfer", model_name="simple", **fields)
    contents = pb.InferTensorContents(int_contents=range(16))
    for name, fields in (("contents", {"contents": contents}), ("no contents", {"contents": pb.InferTensorContents()})):
        given = pb.ModelInferRequest.InferInputTensor(
            name="INPUT0", datatype="INT32", shape=[1, 16], parameters=places["in a"], **fields
        )
        then(f"input with {name}", "ModelInfer", model_name="simple", inputs=[given, second], raw_input_contents=[row])
    classes = {"classification": pb.InferParameter(int64_param=1)}
    wanted = [pb.ModelInferRequest.InferRequestedOutputTensor(name="OUTPUT0", parameters=places["in a"] | classes)]
    then("output classified", "ModelInfer", model_name="simple", **(fields_of(row) | {"outputs": wanted}))


def fields_of(row: bytes) -> dict[str, Any]:
    inputs = [
        pb.ModelInferRequest.InferInputTensor(name=name, datatype="INT32", shape=[1, 16])
        for name in ("INPUT0", "INPUT1")
    ]
    return {"inputs": inputs, "raw_input_contents": [row, row]}


def ask_trace_settings(server: ServerProcess) -> Answers:
    answers: Answers = {}

    def then(model: str = "", **settings: Iterable[str]) -> None:
        values = {name: pb.TraceSettingRequest.SettingValue(value=list(value)) for name, value in settings.items()}
        title = f"{model!r} {' '.join(f'{key}={value}' for key, value in settings.items())}"
        add(answers, title, ask(server, "TraceSetting", settings=values, model_name=model))

    then()
    then("simple")
    for model in ("missing", "str_id", "simple\0"):
        then(model)
        then(model, trace_rate=["1"])
    then(trace_file=["/tmp/x"])
    then(trace_file=[])
    then(trace_mode=["opentelemetry"])
    then(other=["1"])
    for level in (
        ["OFF"],
        ["TIMESTAMPS"],
        ["TENSORS"],
        ["TENSORS", "TIMESTAMPS"],
        ["OFF", "TIMESTAMPS"],
        ["MAX"],
        ["off"],
        [""],
    ):
        then(trace_level=level)
    then(trace_level=["OFF"])
    for key in ("trace_rate", "trace_count", "log_frequency"):
        for value in (
            "0",
            "7",
            "-1",
            "-2",
            "",
            "x",
            "7x",
            " 7",
            "1.5",
            "2147483647",
            "2147483648",
            "4294967296",
            "9" * 30,
        ):
            then(**{key: [value]})
        then(**{key: ["1", "2"]})
        then(**{key: []})
    then("simple", trace_rate=["3"], trace_level=["TIMESTAMPS"], trace_count=["5"])
    then()
    then(trace_rate=["9"])
    then("simple")
    then("simple", trace_rate=[])
    then("simple", trace_level=[], trace_count=[], log_frequency=[])
    then("multi_v")
    then(trace_rate=["8"], trace_count=["x"])
    then(trace_rate=[], trace_level=[], trace_count=[], log_frequency=[])
    return answers


def ask_log_settings(server: ServerProcess) -> Answers:
    answers: Answers = {}

    def then(**settings: Any) -> None:
        text = " ".join(f"{key}={str(value).strip() or None}" for key, value in settings.items())
        answer = ask(server, "LogSettings", settings=settings)
        answer.get("settings", {}).pop("log_file", None)
        add(answers, text, answer)

    kinds = [
        pb.LogSettingsRequest.SettingValue(),
        pb.LogSettingsRequest.SettingValue(bool_param=True),
        pb.LogSettingsRequest.SettingValue(uint32_param=0),
        pb.LogSettingsRequest.SettingValue(string_param="default"),
    ]
    then()
    for key in ("log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format", "other"):
        for kind in kinds:
            then(**{key: kind})
    for text in ("ISO8601", "iso8601", "", "x"):
        then(log_format=pb.LogSettingsRequest.SettingValue(string_param=text))
    then(log_format=kinds[3])
    for number in (1, 2**31 - 1, 2**31, 2**32 - 1, 0):
        then(log_verbose_level=pb.LogSettingsRequest.SettingValue(uint32_param=number))
    off = pb.LogSettingsRequest.SettingValue(bool_param=False)
    then(log_info=off, log_warning=off, log_error=kinds[3])
    then(log_info=kinds[1], log_warning=kinds[1], log_error=kinds[1])
    return answers
