"""Python models: the library that they import, and what becomes of what they return, raise and send.

The model `code` runs Python that a request brings: expressions, whose values it answers with, or the body of `execute`.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers, http

OPTIONS = ("--exit-on-error=false",)
TEXTS = "arrays of text are taken"
NATIVE = "arrays of both byte orders are taken"
NO_DATATYPE = "the text names the array's dtype"
ENDS = "the text says where the tensor ends"
ONE_SPACE = "Triton's text has the spaces of a line of its source"
NEWER = "newer releases have parameters of responses"
CLASS = "Triton's text has the compiler's name of the class"
LABEL = "the text says what is wrong"
KEPT = "a metric keeps its family"
NO_DLPACK = (
    "TritonModelException: Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
    "`__dlpack_device__` attributes"
)
NOT_CREATED = "TritonModelException: Error when creating Metric: "
REFUSED = "Failed to process the request for model 'code_0_0', message: "
OTHERWISE: dict[str, tuple[str, Any]] = {
    "arrays: Tensor('T', np.array(['a', 'bc']))": (TEXTS, "T [2] <U2 [2] ['a', 'bc']"),
    "arrays: Tensor('T', np.ma.array([1, 2], mask=[0, 1]))": ("the mask is ignored", "T [2] int64 [2] [1, 2]"),
    "arrays: Tensor('T', np.array([1, 2], '>i4'))": (NATIVE, "T [2] int32 [2] [1, 2]"),
    **{
        f"arrays: Tensor('T', np.array({array}))": (
            NO_DATATYPE,
            f"TritonModelException: Tensor 'T' has the numpy dtype '{dtype}', which has no Triton datatype.",
        )
        for array, dtype in {
            "[1 + 2j]": "complex128",
            "['2020-01-01'], 'M8[D]'": "datetime64[D]",
            "[(1, 2.0)], 'i4,f4'": "[('f0', '<i4'), ('f1', '<f4')]",
        }.items()
    },
    "dlpack: Tensor.from_dlpack('T', [1, 2])": (ONE_SPACE, NO_DLPACK),
    "dlpack: Tensor.from_dlpack('T', None)": (ONE_SPACE, NO_DLPACK),
    "functions: pb_utils.serialize_byte_tensor(np.array(['ab', 'c']))": (
        TEXTS,
        "b'\\x02\\x00\\x00\\x00ab\\x01\\x00\\x00\\x00c'",
    ),
    "functions: pb_utils.deserialize_bytes_tensor(b'\\x05\\0\\0\\0a').size": (
        ENDS,
        "TritonModelException: the string tensor ends inside its element 0",
    ),
    "functions: pb_utils.deserialize_bytes_tensor(b'\\x05\\0').size": (
        ENDS,
        "TritonModelException: the string tensor ends inside the length of its element 0",
    ),
    "errors: pb_utils.InferenceResponse([], None, None)": (NEWER, ""),
    "errors: pb_utils.InferenceResponse(parameters={'a': 1})": (NEWER, ""),
    "requests: made, bytes as correlation id": (
        "bytes are taken for a str everywhere",
        "[\"''\", \"'five'\", '0', '0', \"'{}'\", \"{'O'}\"]",
    ),
    "requests: made, list as parameters": (CLASS, "TritonModelException: Expect dict, got <class 'list'>"),
    "requests: made, text as parameters": (CLASS, "TritonModelException: Expect dict, got <class 'str'>"),
    "metrics: pb_utils.MetricFamily(name='nv_inference_count', description='of a', "
    "kind=pb_utils.MetricFamily.COUNTER) is None": (
        "the server's metrics are its own",
        f"TritonModelException: Error when creating MetricFamily: {REFUSED}Family name already exists: "
        "'nv_inference_count' is a metric of the server",
    ),
    **{
        f"metrics: kept['counters'].Metric(labels={labels}) is None": (LABEL, NOT_CREATED + text)
        for labels, text in {
            "{'a': 1}": "the value of a label must be a str, not int",
            "{'a b': '1'}": f"{REFUSED}Invalid label name 'a b'",
        }.items()
    },
    "metrics: kept['lost'].set(1)": (KEPT, "None"),
    "metrics: kept['lost'].value()": (KEPT, "1.0"),
    "execute: an error of syntax": (
        "the text has the place of the error",
        {
            "status": 500,
            "type": "text/plain",
            "body": {
                "error": "Failed to process the request(s) for model 'code_0_0', message: SyntaxError: invalid syntax "
                "(inner, line 1)\n\nAt:\n  inner(1): column 4 of '1 +'\n  code(2): execute\n  model.py: execute\n"
            },
        },
    ),
    "execute: the list of requests, changed": (
        "requests that the model removes from its list are answered, too",
        {
            "status": 200,
            "type": "application/json",
            "body": {
                "model_name": "code",
                "model_version": "1",
                "outputs": [{"name": "OUT", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}],
            },
        },
    ),
}

CODE = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils

kept = {}


def described(value):
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)} {value.tolist()}"
    if isinstance(value, pb_utils.Tensor):
        return f"{value.name()} {value.shape()} {described(value.as_numpy())}"
    if isinstance(value, pb_utils.InferenceResponse):
        if value.has_error():
            return f"error {value.error().code()} {value.error().message()}"
        return "; ".join(map(described, value.output_tensors()))
    if isinstance(value, (list, tuple)):
        return str([described(each) for each in value])
    return repr(value)


def answer(expression, scope):
    try:
        if expression.startswith("import "):
            exec(expression, scope)
            return ""
        return described(eval(expression, scope))
    except BaseException as error:
        # The texts of these are pybind11's and Python's.
        text = "" if type(error) in (TypeError, AttributeError) else f": {error}"
        return f"{type(error).__name__}{text}"


class TritonPythonModel:
    def initialize(self, args):
        self.args = args

    def scope(self, requests):
        return {
            "args": self.args,
            "json": json,
            "kept": kept,
            "np": np,
            "pb_utils": pb_utils,
            "request": requests[0],
            "requests": requests,
            "Tensor": pb_utils.Tensor,
        }

    def execute(self, requests):
        lines = pb_utils.get_input_tensor_by_name(requests[0], "CODE").as_numpy()
        scope = self.scope(requests)
        if pb_utils.get_input_tensor_by_name(requests[0], "EVALUATE") is not None:
            answers = [answer(line.decode(), scope) for line in lines]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("ANSWERS", np.array(answers, np.object_))])]
        exec(compile(lines[0], "code", "exec"), scope)
        return scope["execute"](requests)
"""
CONFIG = """
backend: "python"
input [
  { name: "CODE", data_type: TYPE_STRING, dims: [ -1 ] },
  { name: "EVALUATE", data_type: TYPE_BOOL, dims: [ 1 ], optional: true }
]
output [
  { name: "ANSWERS", data_type: TYPE_STRING, dims: [ -1 ] },
  { name: "OUT", data_type: TYPE_FP32, dims: [ 2 ] },
  { name: "OTHER", data_type: TYPE_INT32, dims: [ -1 ] }
]
instance_group [ { kind: KIND_CPU } ]
parameters { key: "colour" value: { string_value: "blue" } }
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


def write_model(folder: Path, name: str, code: str, config: str = CONFIG) -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(code)
    (folder / name / "config.pbtxt").write_text(config)


def write_models(folder: Path) -> None:
    write_model(folder, "code", CODE)
    write_model(folder, "many", CODE, CONFIG + DECOUPLED)


def bytes_tensor(name: str, elements: list[str]) -> Any:
    return {"name": name, "shape": [len(elements)], "datatype": "BYTES", "data": elements}


EVALUATE = {"name": "EVALUATE", "shape": [1], "datatype": "BOOL", "data": [True]}


def values(server: ServerProcess, expressions: list[str], model: str = "code", **more: Any) -> Answers:
    """The value of each expression in the model, or its exception."""
    document = {"inputs": [bytes_tensor("CODE", expressions), EVALUATE], **more}
    answered = http(server, "POST", f"/v2/models/{model}/infer", document)
    if answered["status"] != 200:
        return {"failed": answered}
    return dict(zip(expressions, without_places(answered["body"]["outputs"][0]["data"]), strict=True))


def run(server: ServerProcess, code: str, model: str = "code", call: str = "infer", **more: Any) -> Any:
    """The server's answer to a request that runs `code`, which defines `execute`."""
    document = {"inputs": [bytes_tensor("CODE", [textwrap.dedent(code)])], **more}
    if call != "infer":
        document = {"CODE": [textwrap.dedent(code)], **more}
    answered = without_places(http(server, "POST", f"/v2/models/{model}/{call}", document))
    if answered.get("text", "").startswith('data: {"error"'):
        del answered["status"]  # Triton reads it from memory that it has freed
    return answered


def without_places(answer: Any) -> Any:
    """The answer without the paths and lines of files but the code of the request."""
    text = re.sub(r"/[^\s'\"(]*/([^/\s'\"(]+)\(\d+\)", r"\1", json.dumps(answer))
    return json.loads(re.sub(r"/[^\s'\"(]*/([^/\s'\"(]+\.py)", r"\1", text))


NUMBERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
TYPES = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"]
CODES = (
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARG",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
)


def ask_arrays(server: ServerProcess) -> Answers:
    """Tensors of arrays of every kind, and what is refused."""
    return values(
        server,
        [
            "Tensor('T', np.array([[True], [False]]))",
            *(f"Tensor('T', np.array([[1, 2]], np.{dtype}))" for dtype in NUMBERS),
            "Tensor('T', np.array(['a', 'ü'], np.object_))",
            "Tensor('T', np.array([b'a', b'\\xff\\x00'], np.object_))",
            "Tensor('T', np.array([1, None, 2.5, 'x', b'y'], np.object_))",
            "Tensor('T', np.array([b'a', b'bc']))",
            "Tensor('T', np.array(['a', 'bc']))",
            "Tensor('T', np.array([[b'a'], [b'bc']]))",
            "Tensor('T', np.array([], np.object_))",
            "Tensor('T', np.zeros((0, 3), np.object_))",
            "Tensor('T', np.array([]))",
            "Tensor('T', np.zeros((2, 0, 3), np.int8))",
            "Tensor('T', np.array(5, np.int32))",
            "Tensor('T', np.array(b'x', np.object_))",
            "Tensor('T', np.arange(6, dtype=np.int32).reshape(2, 3).T)",
            "Tensor('T', np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)))",
            "Tensor('T', np.arange(6, dtype=np.int32)[::2])",
            "Tensor('T', np.arange(6, dtype=np.int32)[::-1])",
            "Tensor('T', np.broadcast_to(np.int8(3), (2, 2)))",
            "Tensor('T', np.array(['a', 'b', 'c'], np.object_)[::2])",
            "Tensor('T', np.ma.array([1, 2], mask=[0, 1]))",
            "Tensor('T', np.array([1, 2], '>i4'))",
            "Tensor('T', np.array([1 + 2j]))",
            "Tensor('T', np.array(['2020-01-01'], 'M8[D]'))",
            "Tensor('T', np.array([(1, 2.0)], 'i4,f4'))",
            "Tensor('T', [1, 2])",
            "Tensor('T', 5)",
            "Tensor('T', 'abc')",
            "Tensor('T', None)",
            "Tensor('T', np.float32(1))",
            "Tensor('', np.zeros(1))",
            "Tensor(None, np.zeros(1))",
            "Tensor(5, np.zeros(1))",
            "Tensor(b'T', np.zeros(1))",
            "Tensor('ü', np.zeros(1))",
            "Tensor('T')",
            "Tensor()",
            "Tensor('T', np.zeros(1)).name()",
            "Tensor('T', np.zeros((2, 1))).shape()",
            "Tensor('T', np.zeros(1)).is_cpu()",
            "Tensor('T', np.zeros(1)).__dlpack_device__()",
            "Tensor('T', np.zeros(1)).as_numpy().flags.writeable",
            "pb_utils.get_input_tensor_by_name(request, 'EVALUATE').as_numpy().flags.writeable",
            "pb_utils.get_input_tensor_by_name(request, 'EVALUATE')",
            "pb_utils.get_input_tensor_by_name(request, 'CODE').shape()",
            "pb_utils.get_input_tensor_by_name(request, 'CODE').as_numpy().dtype",
            "type(pb_utils.get_input_tensor_by_name(request, 'CODE').as_numpy()[0]).__name__",
            "pb_utils.get_input_tensor_by_name(request, 'NONE')",
            "pb_utils.get_input_tensor_by_name(request, None)",
            "pb_utils.get_input_tensor_by_name(None, 'CODE')",
        ],
    )


def ask_dlpack(server: ServerProcess) -> Answers:
    return values(
        server,
        [
            *(f"Tensor.from_dlpack('T', Tensor('T', np.array([[1, 2]], np.{dtype})).to_dlpack())" for dtype in NUMBERS),
            "Tensor.from_dlpack('T', Tensor('T', np.array([True])).to_dlpack())",
            "Tensor.from_dlpack('T', Tensor('T', np.array(['a'], np.object_)).to_dlpack())",
            "Tensor('T', np.array(['a'], np.object_)).to_dlpack()",
            "Tensor('T', np.array(['a'], np.object_)).__dlpack__()",
            "Tensor.from_dlpack('T', [1, 2])",
            "Tensor.from_dlpack('T', None)",
            "Tensor.from_dlpack('', None)",
            "Tensor.from_dlpack(None, Tensor('T', np.zeros(1)))",
            "Tensor.from_dlpack(b'T', Tensor('T', np.zeros(1)))",
            "Tensor.from_dlpack('T', Tensor('T', np.array(7, np.int32)))",
            "Tensor.from_dlpack('T', Tensor('T', np.zeros((0, 2), np.int32)))",
            "Tensor.from_dlpack('T', Tensor('T', np.arange(6, dtype=np.int32).reshape(2, 3).T))",
            "Tensor.from_dlpack('T', Tensor('T', np.arange(6, dtype=np.int32)[2:]))",
            "np.from_dlpack(Tensor('T', np.array([1, 2], np.int32)))",
            "np.from_dlpack(pb_utils.get_input_tensor_by_name(request, 'EVALUATE'))",
            "Tensor('T', np.zeros(1)).__dlpack__(stream=None) is None",
            "Tensor('T', np.zeros(1)).__dlpack__(None) is None",
            "Tensor('T', np.zeros(1)).__dlpack__(stream=1) is None",
            "type(Tensor('T', np.zeros(1)).to_dlpack()).__name__",
            "'dltensor' in repr(Tensor('T', np.zeros(1)).to_dlpack())",
        ],
    )


NAMES = {
    "pb_utils": "InferenceRequest InferenceResponse Logger MetricFamily ModelConfig PreferredMemory "
    "TRITONSERVER_MEMORY_CPU TRITONSERVER_MEMORY_GPU TRITONSERVER_REQUEST_FLAG_SEQUENCE_END "
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START TRITONSERVER_REQUEST_RELEASE_ALL TRITONSERVER_REQUEST_RELEASE_RESCHEDULE "
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL TRITON_STRING_TO_NUMPY Tensor TritonError TritonModelException "
    "deserialize_bytes_tensor get_input_config_by_name get_input_tensor_by_name get_model_dir "
    "get_output_config_by_name get_output_tensor_by_name is_model_ready json load_model np numpy_to_triton_type "
    "serialize_byte_tensor struct triton_string_to_numpy triton_to_numpy_type unload_model "
    "using_decoupled_model_transaction_policy",
    "c": "COUNTER GAUGE HISTOGRAM InferenceRequest InferenceResponse InferenceResponseSender InferenceTrace Logger "
    "MemoryType Metric MetricFamily MetricKind PreferredMemory ResponseIterator TRITONSERVER_MEMORY_CPU "
    "TRITONSERVER_MEMORY_GPU Tensor TritonError TritonModelException is_model_ready load_model unload_model",
    "pb_utils.InferenceRequest": "async_exec correlation_id exec flags get_response_sender inputs is_cancelled "
    "parameters request_id requested_output_names set_flags set_release_flags timeout trace",
    "pb_utils.Logger": "ERROR INFO LogLevel VERBOSE WARNING log log_error log_info log_verbose log_warn",
    "pb_utils.MetricFamily": "COUNTER GAUGE HISTOGRAM Metric",
    "pb_utils.Tensor": "as_numpy from_dlpack is_cpu name shape to_dlpack triton_dtype __dlpack__ __dlpack_device__",
}


def ask_functions(server: ServerProcess) -> Answers:
    """Functions and constants of the library."""
    types = [*TYPES, "STRING", "BF16"]
    config = "{'input': [{'name': 'A', 'x': 1}], 'output': [{'name': 'B', 'y': 1}]}"
    return values(
        server,
        [
            *(f"pb_utils.triton_string_to_numpy('TYPE_{each}')" for each in types),
            "pb_utils.triton_string_to_numpy('FP32')",
            "pb_utils.triton_string_to_numpy('TYPE_INVALID')",
            "pb_utils.triton_string_to_numpy(None)",
            "[getattr(pb_utils.triton_to_numpy_type(number), '__name__', None) for number in (-1, 0, *range(2, 16))]",
            "pb_utils.triton_to_numpy_type('x')",
            "[pb_utils.numpy_to_triton_type(getattr(np, each)) for each in"
            f" ['bool_', 'object_', 'bytes_', 'complex64', *{NUMBERS}]]",
            "[pb_utils.numpy_to_triton_type(np.dtype(each)) for each in ['f4', '>f4', 'O', 'M8']]",
            "pb_utils.numpy_to_triton_type('nothing')",
            "pb_utils.numpy_to_triton_type(None)",
            "pb_utils.serialize_byte_tensor(np.array(['a', 'ü', b'\\xff', 5, None], np.object_))",
            "pb_utils.serialize_byte_tensor(np.array([b'ab', b'c']))",
            "pb_utils.serialize_byte_tensor(np.array(['ab', 'c']))",
            "pb_utils.serialize_byte_tensor([b'a'])",
            "pb_utils.deserialize_bytes_tensor(b'\\x01\\0\\0\\0a\\0\\0\\0\\0')",
            "pb_utils.deserialize_bytes_tensor(b'')",
            "pb_utils.deserialize_bytes_tensor(np.array([1, 0, 0, 0, 97], np.uint8))",
            "pb_utils.deserialize_bytes_tensor(b'\\x05\\0\\0\\0a').size",
            "pb_utils.deserialize_bytes_tensor(b'\\x05\\0').size",
            f"pb_utils.get_input_config_by_name({config}, 'A')",
            f"pb_utils.get_input_config_by_name({config}, 'B')",
            f"pb_utils.get_output_config_by_name({config}, 'B')",
            f"pb_utils.get_output_config_by_name({config}, 'A')",
            "pb_utils.get_input_config_by_name({}, 'A')",
            "pb_utils.get_input_config_by_name({'input': [{}]}, 'A')",
            "pb_utils.using_decoupled_model_transaction_policy({})",
            "pb_utils.using_decoupled_model_transaction_policy({'model_transaction_policy': {'decoupled': True}})",
            "pb_utils.using_decoupled_model_transaction_policy(json.loads(args['model_config']))",
            "pb_utils.get_model_dir().split('/')[-2:]",
            "sorted(pb_utils.TRITON_STRING_TO_NUMPY)",
            "import c_python_backend_utils as c",
            *(f"[each for each in {names.split()} if not hasattr({of}, each)]" for of, names in NAMES.items()),
            "[pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END]",
            "[pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL, pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE]",
            "pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL",
            "[str(pb_utils.TRITONSERVER_MEMORY_CPU), int(pb_utils.TRITONSERVER_MEMORY_CPU)]",
            "[str(pb_utils.TRITONSERVER_MEMORY_GPU), int(pb_utils.TRITONSERVER_MEMORY_GPU)]",
            "pb_utils.TRITONSERVER_MEMORY_GPU",
            "pb_utils.TRITONSERVER_MEMORY_CPU.name",
            "pb_utils.TRITONSERVER_MEMORY_CPU.value",
            "pb_utils.PreferredMemory() is None",
            "pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU) is None",
            "pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1) is None",
            "pb_utils.PreferredMemory(preferred_memory_type=pb_utils.TRITONSERVER_MEMORY_GPU,"
            " preferred_device_id=0) is None",
            "pb_utils.PreferredMemory(1) is None",
            "pb_utils.PreferredMemory(None) is None",
            "pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, None) is None",
            "pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, '0') is None",
            "pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1.5) is None",
        ],
    )


def ask_errors(server: ServerProcess) -> Answers:
    """TritonError, TritonModelException and InferenceResponse."""
    return values(
        server,
        [
            "E := pb_utils.TritonError",
            *(f"pb_utils.TritonError.{code}" for code in CODES),
            "str(pb_utils.TritonError.NOT_FOUND)",
            "pb_utils.TritonError.NOT_FOUND.name",
            "pb_utils.TritonError.NOT_FOUND.value",
            "int(pb_utils.TritonError.NOT_FOUND)",
            "pb_utils.TritonError.NOT_FOUND == 2",
            "pb_utils.TritonError('x').code()",
            "pb_utils.TritonError('x').code() == pb_utils.TritonError.INTERNAL",
            "pb_utils.TritonError('x', pb_utils.TritonError.CANCELLED).code()",
            "pb_utils.TritonError(message='x', code=pb_utils.TritonError.CANCELLED).code()",
            "pb_utils.TritonError('x').message()",
            "pb_utils.TritonError(b'x').message()",
            "pb_utils.TritonError('').message()",
            "pb_utils.TritonError('ü\\x00y').message()",
            "pb_utils.TritonError()",
            "pb_utils.TritonError(None)",
            "pb_utils.TritonError(5)",
            "pb_utils.TritonError('x', None)",
            "pb_utils.TritonError('x', 99).code()",
            "pb_utils.TritonError('x', 'INTERNAL').code()",
            "issubclass(pb_utils.TritonModelException, Exception)",
            "pb_utils.TritonModelException.__name__",
            "str(pb_utils.TritonModelException('x'))",
            "pb_utils.InferenceResponse()",
            "pb_utils.InferenceResponse([])",
            "pb_utils.InferenceResponse(None)",
            "pb_utils.InferenceResponse([None])",
            "pb_utils.InferenceResponse(['x'])",
            "pb_utils.InferenceResponse(Tensor('T', np.zeros(1)))",
            "pb_utils.InferenceResponse((Tensor('T', np.array([1])),))",
            "pb_utils.InferenceResponse({'T': Tensor('T', np.array([1]))})",
            "pb_utils.InferenceResponse(output_tensors=[Tensor('T', np.array([1]))])",
            "pb_utils.InferenceResponse([Tensor('T', np.array([1])), Tensor('T', np.array([2]))])",
            "pb_utils.InferenceResponse(error=None)",
            "pb_utils.InferenceResponse(error='x')",
            "pb_utils.InferenceResponse(error=pb_utils.TritonError('x'))",
            "pb_utils.InferenceResponse([], pb_utils.TritonError('x'))",
            "pb_utils.InferenceResponse([Tensor('T', np.array([1]))], pb_utils.TritonError('x'))",
            "pb_utils.InferenceResponse(pb_utils.TritonError('x'))",
            "pb_utils.InferenceResponse([], None, None)",
            "pb_utils.InferenceResponse(parameters={'a': 1})",
            "pb_utils.InferenceResponse().has_error()",
            "pb_utils.InferenceResponse().error()",
            "pb_utils.InferenceResponse().output_tensors()",
            "type(pb_utils.InferenceResponse([Tensor('T', np.array([1]))]).output_tensors()).__name__",
            "pb_utils.get_output_tensor_by_name(pb_utils.InferenceResponse([Tensor('T', np.array([1]))]), 'T')",
            "pb_utils.get_output_tensor_by_name(pb_utils.InferenceResponse([Tensor('T', np.array([1]))]), 'U')",
            "pb_utils.get_output_tensor_by_name(None, 'U')",
        ],
    )


def ask_requests(server: ServerProcess) -> Answers:
    """What the model sees of a request, and requests that it makes."""
    given = "inputs=[], requested_output_names=['O'], model_name='m'"
    made = {
        "id": "request_id='r'",
        "bytes id": "request_id=b'r'",
        "no id": "request_id=None",
        "number as id": "request_id=5",
        "correlation id": "correlation_id=5",
        "text as correlation id": "correlation_id='five'",
        "bytes as correlation id": "correlation_id=b'five'",
        "no correlation id": "correlation_id=None",
        "float as correlation id": "correlation_id=1.5",
        "large correlation id": "correlation_id=2**64 - 1",
        "numpy's correlation id": "correlation_id=np.int64(5)",
        "True as correlation id": "correlation_id=True",
        "version": "model_version=3",
        "no version": "model_version=None",
        "text as version": "model_version='3'",
        "float as version": "model_version=1.0",
        "numpy's version": "model_version=np.int32(3)",
        "flags": "flags=3",
        "unknown flags": "flags=77",
        "negative flags": "flags=-1",
        "large flags": "flags=2**32",
        "no flags": "flags=None",
        "True as flags": "flags=True",
        "timeout": "timeout=5",
        "negative timeout": "timeout=-5",
        "float as timeout": "timeout=5.5",
        "no timeout": "timeout=None",
        "memory": "preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0)",
        "no memory": "preferred_memory=None",
        "wrong memory": "preferred_memory=pb_utils.TRITONSERVER_MEMORY_GPU",
        "trace": "trace=request.trace()",
        "no trace": "trace=None",
        "parameters": "parameters={'a': 1, 'b': True, 'c': 'ü'}",
        "no parameters": "parameters=None",
        "list as parameters": "parameters=[1]",
        "text as parameters": "parameters='{}'",
        "number as key": "parameters={1: 1}",
        "float as value": "parameters={'a': 1.5}",
        "None as value": "parameters={'a': None}",
        "list as value": "parameters={'a': []}",
        "large value": "parameters={'a': 2**70}",
        "numpy's value": "parameters={'a': np.int64(3)}",
        "unknown argument": "unknown=1",
    }
    shown = "[m.request_id(), m.correlation_id(), m.flags(), m.timeout(), m.parameters(), m.requested_output_names()]"
    answers = values(
        server,
        [
            "[request.request_id(), request.correlation_id(), request.flags(), request.timeout()]",
            "json.loads(request.parameters())",
            "sorted(request.requested_output_names())",
            "type(request.requested_output_names()).__name__",
            "type(request.inputs()).__name__",
            "[each.name() for each in request.inputs()]",
            "request.trace().get_context()",
            "request.is_cancelled()",
            "request.set_flags(3)",
            "request.flags()",
            "request.set_flags(-1)",
            "request.set_flags(None)",
            "request.set_release_flags(1)",
            "request.set_release_flags(None)",
            "request.set_release_flags('x')",
            "type(request.get_response_sender()).__name__",
            "request.get_response_sender() is request.get_response_sender()",
            "request.get_response_sender().is_cancelled()",
            "request.model_name()",
            "request.preferred_memory()",
            "pb_utils.InferenceRequest()",
            "pb_utils.InferenceRequest(inputs=[], requested_output_names=[]) is None",
            "pb_utils.InferenceRequest(inputs=[], model_name='m') is None",
            "pb_utils.InferenceRequest(requested_output_names=[], model_name='m') is None",
            "pb_utils.InferenceRequest(inputs=None, requested_output_names=[], model_name='m') is None",
            "pb_utils.InferenceRequest(inputs=[None], requested_output_names=[], model_name='m') is None",
            "pb_utils.InferenceRequest(inputs=['x'], requested_output_names=[], model_name='m') is None",
            "pb_utils.InferenceRequest(inputs=Tensor('T', np.zeros(1)), requested_output_names=[], model_name='m')",
            "pb_utils.InferenceRequest(inputs=(), requested_output_names=(), model_name='m') is None",
            "pb_utils.InferenceRequest(inputs=[], requested_output_names=None, model_name='m') is None",
            "pb_utils.InferenceRequest(inputs=[], requested_output_names=[None], model_name='m') is None",
            "pb_utils.InferenceRequest(inputs=[], requested_output_names=[''], model_name='m') is None",
            "pb_utils.InferenceRequest(inputs=[], requested_output_names='ab', model_name='m') is None",
            "pb_utils.InferenceRequest(inputs=[], requested_output_names=[b'a'], model_name='m') is None",
            "pb_utils.InferenceRequest(inputs=[], requested_output_names=['b', 'a', 'a'],"
            " model_name='m').requested_output_names() == {'a', 'b'}",
            "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name=None) is None",
            "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name='') is None",
            "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name=b'm') is None",
            "pb_utils.InferenceRequest('r', 5, [], ['O'], 'm', 1, 2, 3).timeout()",
            f"pb_utils.InferenceRequest({given}).trace().get_context()",
            f"type(pb_utils.InferenceRequest({given}).get_response_sender()).__name__",
            f"pb_utils.InferenceRequest({given}).get_response_sender().send(pb_utils.InferenceResponse())",
            f"pb_utils.InferenceRequest({given}).get_response_sender().send(flags=1)",
        ],
        id="given",
        parameters={"a": 1, "b": True, "c": "ü", "timeout": 5_000_000, "priority": 0},
    )
    expressions = {
        name: f"(m := pb_utils.InferenceRequest({given}, {argument}), {shown})[1]" for name, argument in made.items()
    }
    found = values(server, list(expressions.values()))
    return answers | {f"made, {name}": found.get(expression, found) for name, expression in expressions.items()}


def ask_config(server: ServerProcess) -> Answers:
    """The configuration that `auto_complete_config` gets, and what its setters refuse."""
    tensor = {"name": "A", "data_type": "TYPE_FP32", "dims": [4]}
    empty = {"name": "B", "data_type": "TYPE_INVALID", "dims": []}
    plain = {
        "name": "m",
        "max_batch_size": 4,
        "input": [tensor | {"optional": False}, empty],
        "output": [tensor, empty],
    }
    made = "kept.update(config=pb_utils.ModelConfig(json.dumps({})))".format
    call = "kept['config'].{}".format
    added = [
        "{}",
        "{'name': 'C'}",
        "{'name': 'C', 'data_type': 'TYPE_INT8'}",
        "{'data_type': 'TYPE_INT8', 'dims': [1]}",
        "{'name': 'C', 'data_type': 'TYPE_INT8', 'dims': [1], 'x': 1}",
        "{'name': 'C', 'data_type': 'TYPE_INT8', 'dims': [1], 'optional': True}",
        "{'name': 'C', 'data_type': 'TYPE_INT8', 'dims': [1]}",
        "{'name': 'A', 'data_type': 'TYPE_INT8', 'dims': [4]}",
        "{'name': 'A', 'data_type': 'TYPE_FP32', 'dims': [5]}",
        "{'name': 'A', 'data_type': 'TYPE_FP32', 'dims': [4], 'optional': True}",
        "{'name': 'A', 'data_type': 'TYPE_FP32', 'dims': [4]}",
        "{'name': 'B', 'data_type': 'TYPE_FP32', 'dims': [-1, 2]}",
        "{'name': 'D', 'data_type': 'wrong', 'dims': 'wrong'}",
    ]
    return values(
        server,
        [
            made(plain),
            call("set_max_batch_size(2)"),
            call("set_max_batch_size(4)"),
            call("set_max_batch_size(8)"),
            call("set_max_batch_size('x')"),
            call("set_dynamic_batching()"),
            *(call(f"add_{side}({each})") for side in ("input", "output") for each in added),
            call("set_model_transaction_policy({'decoupled': True})"),
            call("set_model_transaction_policy({'decoupled': False})"),
            call("set_model_transaction_policy({'x': True})"),
            call("set_model_transaction_policy({})"),
            call("as_dict()"),
            made(plain | {"sequence_batching": {}}),
            call("set_dynamic_batching() "),
            made(plain | {"ensemble_scheduling": {}}),
            call("set_dynamic_batching()  "),
            made(plain | {"dynamic_batching": {"preferred_batch_size": [2]}}),
            call("set_dynamic_batching()   "),
            call("as_dict()['dynamic_batching']"),
            "pb_utils.ModelConfig('{')",
            "pb_utils.ModelConfig()",
        ],
    )


def ask_metrics(server: ServerProcess) -> Answers:
    """Families, metrics, what they refuse, and the page.

    Triton crashes at some of the errors that its server finds: ask again.
    """
    family = "pb_utils.MetricFamily(name='{}', description='of {}', kind=pb_utils.MetricFamily.{})".format
    expressions = [
        "pb_utils.MetricFamily.COUNTER",
        "pb_utils.MetricFamily.HISTOGRAM.name",
        "int(pb_utils.MetricFamily.GAUGE)",
        f"kept.update(counters={family('my_counter', 'a', 'COUNTER')})",
        f"kept.update(gauges={family('my_gauge', 'a', 'GAUGE')})",
        f"kept.update(histograms={family('my_histogram', 'a', 'HISTOGRAM')})",
        f"kept.update(again={family('my_counter', 'another', 'COUNTER')})",
        f"{family('my_counter', 'a', 'GAUGE')} is None",
        f"{family('nv_inference_count', 'a', 'COUNTER')} is None",
        "pb_utils.MetricFamily() is None",
        "pb_utils.MetricFamily('x', 'y') is None",
        "pb_utils.MetricFamily(None, 'y', pb_utils.MetricFamily.GAUGE) is None",
        "pb_utils.MetricFamily('x', None, pb_utils.MetricFamily.GAUGE) is None",
        "pb_utils.MetricFamily('x', 'y', None) is None",
        "pb_utils.MetricFamily('x', 'y', 1) is None",
        "pb_utils.MetricFamily('x', 'y', 'GAUGE') is None",
        "kept.update(counter=kept['counters'].Metric(labels={'a': '1', 'b': '2'}))",
        "kept.update(same=kept['again'].Metric(labels={'a': '1', 'b': '2'}))",
        "kept.update(plain=kept['counters'].Metric())",
        "kept.update(gauge=kept['gauges'].Metric({'quoted': 'a\"b\\\\c\\nd'}))",
        "kept.update(histogram=kept['histograms'].Metric({'a': '1'}, [0.1, 1, 2.5]))",
        "kept.update(bare=kept['histograms'].Metric({'a': '2'}, []))",
        "kept['counters'].Metric(labels=[]) is None",
        "kept['counters'].Metric(labels='x') is None",
        "kept['counters'].Metric(labels={'a': 1}) is None",
        "kept['counters'].Metric(labels={'a b': '1'}) is None",
        "kept['counters'].Metric(buckets=[1]) is None",
        "kept['counters'].Metric(buckets=[]) is None",
        "kept['gauges'].Metric(buckets=[1]) is None",
        "kept['histograms'].Metric() is None",
        "kept['histograms'].Metric(buckets=None) is None",
        "kept['histograms'].Metric(buckets=(1, 2)) is None",
        "kept['histograms'].Metric(buckets='x') is None",
        "kept['histograms'].Metric(buckets=[2, 1]) is None",
        "kept['counter'].value()",
        "kept['counter'].increment(2023.0)",
        "kept['counter'].increment(5)",
        "kept['counter'].increment(0)",
        "kept['same'].increment(0.5)",
        "kept['counter'].value()",
        "kept['counter'].increment(-1)",
        "kept['counter'].set(1)",
        "kept['counter'].increment('x')",
        "kept['counter'].increment(None)",
        "kept['counter'].increment()",
        "kept['counter'].increment(np.float32(0.5))",
        "kept['counter'].increment(np.int64(1))",
        "kept['counter'].increment(True)",
        "kept['counter'].value() ",
        "kept['plain'].value()",
        "kept['gauge'].value()",
        "kept['gauge'].set(-5)",
        "kept['gauge'].increment(2)",
        "kept['gauge'].increment(-0.5)",
        "kept['gauge'].value() ",
        "kept['gauge'].observe(1)",
        "kept['gauge'].set('x')",
        "kept['histogram'].value()",
        "kept['histogram'].observe('x')",
        "[kept['histogram'].observe(each) for each in (0.05, 0.1, 1.5, 6)]",
        "kept['bare'].observe(1)",
        "kept.update(lost=pb_utils.MetricFamily('lost', 'a', pb_utils.MetricFamily.GAUGE).Metric())",
        "kept['lost'].set(1)",
        "kept['lost'].value()",
    ]
    answers = values(server, expressions)
    page = server.request("GET", "/metrics", port=server.metrics_port)[2].decode()
    answers["page"] = sorted(
        line for line in page.splitlines() if re.match(r"(# \w+ )?(my_|nv_inference_count )", line)
    )
    return answers


def ask_log(server: ServerProcess) -> Answers:
    """What the logger takes, and the level and text of its lines."""
    levels = ("INFO", "WARNING", "ERROR", "VERBOSE")
    answers = values(
        server,
        [
            "L := pb_utils.Logger",
            *(f"[str(pb_utils.Logger.{level}), int(pb_utils.Logger.{level})]" for level in levels),
            "pb_utils.Logger.LogLevel.INFO == pb_utils.Logger.INFO",
            "pb_utils.Logger.INFO.name",
            "pb_utils.Logger.log('x')",
            "pb_utils.Logger.log(message='x', level=pb_utils.Logger.ERROR)",
            "pb_utils.Logger.log('x', None)",
            "pb_utils.Logger.log('x', 1)",
            "pb_utils.Logger.log('x', 'INFO')",
            "pb_utils.Logger.log(None)",
            "pb_utils.Logger.log(5)",
            "pb_utils.Logger.log(b'bytes')",
            "pb_utils.Logger.log()",
            "pb_utils.Logger.log_info(None)",
            "pb_utils.Logger.log_warn(5)",
            "pb_utils.Logger.log_error()",
            "pb_utils.Logger.log_verbose('x')",
            "pb_utils.Logger.log_info(message='x')",
            "pb_utils.Logger.log_info('a', 'b')",
            "pb_utils.Logger.log_info('%s')",
        ],
    )
    run(
        server,
        """
        def execute(requests):
            for level in ("info", "warn", "error", "verbose"):
                getattr(pb_utils.Logger, f"log_{level}")(f"line of {level}")
            return [pb_utils.InferenceResponse()]
        """,
    )
    lines = [line for line in server.log_text().splitlines() if "line of " in line]
    answers["lines"] = sorted(f"{line[0]} {line[line.index('line of') :]}" for line in lines)
    return answers


TENSOR = "pb_utils.Tensor('OUT', np.array([1, 2], np.float32))"
RESPONSE = f"pb_utils.InferenceResponse([{TENSOR}])"


def returned(what: str) -> str:
    return f"def execute(requests):\n    return {what}"


def raised(what: str) -> str:
    return f"def execute(requests):\n    {what}"


def ask_codes(server: ServerProcess) -> Answers:
    error = "[pb_utils.InferenceResponse(error=pb_utils.TritonError('wrong', pb_utils.TritonError.{}))]".format
    return {code: run(server, returned(error(code))) for code in CODES}


def ask_outputs(server: ServerProcess) -> Answers:
    """Outputs beside the configuration, FP32 [2] and INT32 [-1], and beside what was requested."""
    made = {
        "other dtype": "np.array([1, 2], np.int8)",
        "text": "np.array(['a', 'b'], np.object_)",
        "other shape": "np.zeros((3, 1), np.float32)",
        "no elements": "np.zeros(0, np.float32)",
        "no dimension": "np.array(5, np.float32)",
        "booleans": "np.array([True, False])",
        "transposed": "np.arange(6, dtype=np.float32).reshape(2, 3).T",
        "half": "np.array([1, 2], np.float16)",
        "not finite": "np.array([np.nan, np.inf, -np.inf], np.float32)",
        "bytes that are no text": "np.array([b'\\xff'], np.object_)",
        "quotes": "np.array(['\"\\\\\\n\\x01\\x7f\\u2028', 'ü'], np.object_)",
        "large": "np.array([2**64 - 1, 0], np.uint64)",
        "small": "np.array([-2**63, 0], np.int64)",
    }
    answers = {
        name: run(server, returned(f"[pb_utils.InferenceResponse([pb_utils.Tensor('OUT', {array})])]"))
        for name, array in made.items()
    }
    two = returned(
        "[pb_utils.InferenceResponse([pb_utils.Tensor('OTHER', np.array([5], np.int32)),"
        " pb_utils.Tensor('OUT', np.zeros(2, np.float32))])]"
    )
    for name, outputs in {
        "OUT": [{"name": "OUT"}],
        "OTHER, OUT": [{"name": "OTHER"}, {"name": "OUT"}],
        "ANSWERS": [{"name": "ANSWERS"}],
        "X": [{"name": "X"}],
        "in binary": [{"name": "OUT", "parameters": {"binary_data": True}}],
        "classification": [{"name": "OUT", "parameters": {"classification": 1}}],
        "none": [],
    }.items():
        answers[f"requested: {name}"] = run(server, two, outputs=outputs)
    for name in ("half", "text", "no elements", "other dtype", "bytes that are no text"):
        code = returned(f"[pb_utils.InferenceResponse([pb_utils.Tensor('OUT', {made[name]})])]")
        answers[f"{name}, in binary"] = run(server, code, parameters={"binary_data_output": True})
    names = "sorted(requests[0].requested_output_names())"
    code = returned(f"[pb_utils.InferenceResponse([pb_utils.Tensor('ANSWERS', np.array({names}, np.object_))])]")
    answers["names that were requested"] = run(server, code, outputs=[{"name": "OTHER"}, {"name": "ANSWERS"}])
    return answers


def send(*arguments: str) -> str:
    """The body of an execution that sends so, and the last time with the exception of what failed."""
    lines = ["def execute(requests):", "    sender = requests[0].get_response_sender()"]
    lines += ["    import json", "    found = []"]
    for each in arguments:
        lines += ["    try:", f"        found.append(repr(sender.send({each})))", "    except Exception as error:"]
        lines += ["        text = '' if type(error) is TypeError else str(error)"]
        lines += ["        found.append(type(error).__name__ + ': ' + text)"]
    return "\n".join([*lines, "    kept['found'] = found"])


SENT = {
    "one": [RESPONSE, "flags=1"],
    "with the end": [f"{RESPONSE}, flags=1"],
    "three": [RESPONSE, RESPONSE, f"{RESPONSE}, 1"],
    "no responses": ["flags=1"],
    "after the end": [f"{RESPONSE}, 1", RESPONSE],
    "the end twice": ["flags=1", "flags=1"],
    "nothing": ["", "flags=1"],
    "nothing with flag 0": ["None, 0", "flags=1"],
    "unknown flag": [f"{RESPONSE}, 2", "flags=1"],
    "negative flag": [f"{RESPONSE}, -1", "flags=1"],
    "text as flag": [f"{RESPONSE}, '1'", "flags=1"],
    "None as flag": [f"{RESPONSE}, None", "flags=1"],
    "True as flag": [f"{RESPONSE}, True"],
    "float as flag": [f"{RESPONSE}, 1.0", "flags=1"],
    "numpy's flag": [f"{RESPONSE}, np.int32(1)", "flags=1"],
    "text": ["'x'", "flags=1"],
    "a tensor": [TENSOR, "flags=1"],
    "a list": [f"[{RESPONSE}]", "flags=1"],
    "by name": [f"response={RESPONSE}, flags=1"],
    "an error": [
        "pb_utils.InferenceResponse(error=pb_utils.TritonError('x', pb_utils.TritonError.NOT_FOUND))",
        "flags=1",
    ],
    "an error between": [
        RESPONSE,
        "pb_utils.InferenceResponse(error=pb_utils.TritonError('x', pb_utils.TritonError.UNAVAILABLE))",
        f"{RESPONSE}, 1",
    ],
    "other outputs": [
        "pb_utils.InferenceResponse([pb_utils.Tensor('X', np.zeros(1))])",
        "pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([[5]], np.int8))]), 1",
    ],
    "empty": ["pb_utils.InferenceResponse(), 1"],
    "empty, and the end": ["pb_utils.InferenceResponse()", "flags=1"],
    "empty, and another": ["pb_utils.InferenceResponse([])", f"{RESPONSE}, 1"],
}


def ask_sender(server: ServerProcess) -> Answers:
    """What a decoupled model's sender raises, and what reaches the client."""
    answers: Answers = {}
    for name, arguments in SENT.items():
        answers[name] = run(server, send(*arguments), "many", "generate_stream")
        answers[f"{name}: raised"] = run(server, SHOW_FOUND, "many", "generate_stream")
    return answers


SHOW_FOUND = """
def execute(requests):
    answers = pb_utils.Tensor('ANSWERS', np.array(kept.pop('found', []), np.object_))
    requests[0].get_response_sender().send(pb_utils.InferenceResponse([answers]), 1)
"""
DECOUPLED_EXECUTIONS = {
    "a response": returned(f"[{RESPONSE}]"),
    "an empty list": returned("[]"),
    "text": returned("'x'"),
    "an exception": raised("raise ValueError('wrong')"),
    "an exception after a response": (
        f"def execute(requests):\n    requests[0].get_response_sender().send({RESPONSE})\n    raise ValueError('wrong')"
    ),
    "an exception after the end": (
        f"def execute(requests):\n    requests[0].get_response_sender().send({RESPONSE}, 1)\n    raise ValueError('a')"
    ),
    "on a thread": (
        "import threading\ndef execute(requests):\n    sender = requests[0].get_response_sender()\n    def work():\n"
        f"        sender.send({RESPONSE})\n        sender.send({RESPONSE}, 1)\n"
        "    threading.Thread(target=work).start()"
    ),
    "a coroutine": f"async def execute(requests):\n    requests[0].get_response_sender().send({RESPONSE}, 1)",
}


def ask_decoupled(server: ServerProcess) -> Answers:
    """What a decoupled model's client gets of what `execute` returns or raises."""
    answers = {name: run(server, code, "many", "generate_stream") for name, code in DECOUPLED_EXECUTIONS.items()}
    answers["infer"] = run(server, DECOUPLED_EXECUTIONS["on a thread"], "many")
    answers["generate"] = run(server, DECOUPLED_EXECUTIONS["a coroutine"], "many", "generate")
    return answers


EXECUTIONS = {
    "a response": returned(f"[{RESPONSE}]"),
    "no responses": returned("[]"),
    "two responses": returned(f"[{RESPONSE}, {RESPONSE}]"),
    "a tuple": returned(f"({RESPONSE},)"),
    "a response, not in a list": returned(RESPONSE),
    "text": returned("'x'"),
    "a list of a subclass": returned(f"type('L', (list,), {{}})([{RESPONSE}])"),
    "a response without outputs": returned("[pb_utils.InferenceResponse()]"),
    "the response of a subclass": returned(f"[type('R', (pb_utils.InferenceResponse,), {{}})([{TENSOR}])]"),
    "an output twice": returned(f"[pb_utils.InferenceResponse([{TENSOR}, {TENSOR}])]"),
    "an unknown output": returned(f"[pb_utils.InferenceResponse([{TENSOR}, pb_utils.Tensor('X', np.zeros(1))])]"),
    "an error": returned("[pb_utils.InferenceResponse(error=pb_utils.TritonError('wrong: ü'))]"),
    "an empty error": returned("[pb_utils.InferenceResponse(error=pb_utils.TritonError(''))]"),
    "an error with outputs": returned(f"[pb_utils.InferenceResponse([{TENSOR}], pb_utils.TritonError('wrong'))]"),
    "an exception": raised("raise ValueError('wrong: ü')"),
    "an exception without text": raised("raise ValueError"),
    "an exception with lines": raised("raise ValueError('a\\n b\\n')"),
    "an exception of an inner function": (
        "def inner():\n    return [][3]\ndef outer():\n    return inner()\ndef execute(requests):\n    outer()"
    ),
    "an exception of the library": raised("pb_utils.Tensor('', np.zeros(1))"),
    "an exception whose text raises": (
        "class Wrong(Exception):\n    def __str__(self):\n        raise KeyError('inner')\n"
        "def execute(requests):\n    raise Wrong('x')"
    ),
    "an exit": raised("raise SystemExit(3)"),
    "an error of syntax": raised("compile('1 +', 'inner', 'exec')"),
    "a coroutine": f"async def execute(requests):\n    return [{RESPONSE}]",
    "a coroutine that waits": (
        f"import asyncio\nasync def execute(requests):\n    await asyncio.sleep(0.001)\n    return [{RESPONSE}]"
    ),
    "a coroutine that raises": "async def execute(requests):\n    raise ValueError('wrong')",
    "None, and the sender": f"def execute(requests):\n    requests[0].get_response_sender().send({RESPONSE}, flags=1)",
    "None in a list, and the sender": (
        f"def execute(requests):\n    requests[0].get_response_sender().send({RESPONSE}, flags=1)\n    return [None]"
    ),
    "given back": f"def execute(requests):\n    requests[0].set_release_flags(2)\n    return [{RESPONSE}]",
    "the list of requests, changed": f"def execute(requests):\n    requests.clear()\n    return [{RESPONSE}]",
}


def ask_execute(server: ServerProcess) -> Answers:
    """What the client gets of what `execute` returns, raises or sends.

    Triton crashes at some later time after about 25 errors, so these few come last.
    """
    return {name: run(server, code) for name, code in EXECUTIONS.items()}
