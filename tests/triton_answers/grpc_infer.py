"""ModelInfer: tensors in every form, parameters of every kind, names, versions, ids, requested outputs."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from tests.contract.python.python_models import write_model
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.triton_answers import Answers, rpc
from tests.triton_answers.grpc_control import WHOLE_TEXT, bad_version, refused

OPTIONS = ()
DATATYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64")
SIZES = {"BOOL": 1, "BF16": 2} | {name: int(name.lstrip("UINTFP")) // 8 for name in DATATYPES[1:]}
CONTENTS: dict[str, list[Any]] = {
    "bool_contents": [True, False],
    "int_contents": [1, -2],
    "int64_contents": [1, -(2**40)],
    "uint_contents": [1, 2],
    "uint64_contents": [1, 2**63],
    "fp32_contents": [1.5, -2.0],
    "fp64_contents": [1.5, -2.0],
    "bytes_contents": [b"", b"ab"],
}
KINDS: dict[str, Any] = {
    "none": pb.InferParameter(),
    "bool": pb.InferParameter(bool_param=True),
    "int64": pb.InferParameter(int64_param=7),
    "negative": pb.InferParameter(int64_param=-7),
    "string": pb.InferParameter(string_param="seven"),
    "double": pb.InferParameter(double_param=0.5),
    "uint64": pb.InferParameter(uint64_param=7),
}


def said(text: str) -> Answers:
    """The answer of `echo` to an UINT8 97, and what it says."""
    said = base64.b64encode(len(text).to_bytes(4, "little") + text.encode()).decode()
    outputs = [{"name": "uint8", "datatype": "UINT8", "shape": ["1"]}]
    outputs.append({"name": "said", "datatype": "BYTES", "shape": ["1"]})
    return {"model_name": "echo", "model_version": "1", "outputs": outputs, "raw_output_contents": ["YQ==", said]}


def zeros(**fields: str) -> Answers:
    """The answer of `simple` to zeros."""
    outputs = [{"name": "OUTPUT0", "datatype": "INT32", "shape": ["1", "16"]}]
    content = base64.b64encode(bytes(64)).decode()
    return {"model_name": "simple", "model_version": "1", "outputs": outputs, "raw_output_contents": [content]} | fields


NEWER = "as newer releases"
TOO_LARGE = (
    "unexpected explicit tensor data for input tensor '{0}' for model 'echo': element 0 is {1}, which {0} cannot hold"
)
OTHERWISE: dict[str, tuple[str, Any]] = {
    **{
        f"names: version {version!r}": (WHOLE_TEXT, bad_version(version))
        for version in (" 1", "+1", "0x1", "1 ", "1.5", "1\0", "1e0", "1x")
    },
    "names: id 'a\\x00b'": (WHOLE_TEXT, zeros(id="a\0b")),
    "names: model 'simple\\x00'": (
        WHOLE_TEXT,
        refused("Request for unknown model: 'simple\0' is not found", "NOT_FOUND"),
    ),
    "parameters: 'own' string_param: \"a\\000b\"": (WHOLE_TEXT, said('["", 0, 0, 0, {"own": "a\\u0000b"}]')),
    "parameters: 'own\\x00' string_param: \"a\"": (WHOLE_TEXT, said('["", 0, 0, 0, {"own\\u0000": "a"}]')),
    "parameters: 'sequence_id' string_param: \"\"": ("no sequence has the id 0", said('["", 0, 0, 0, {}]')),
    "outputs: twice": (NEWER, refused("[request id: <id_unknown>] output 'OUTPUT0' already exists in request")),
    "shapes: echo [2305843009213693952]": (
        NEWER,
        refused(
            "[request id: <id_unknown>] byte size overflow for input 'INT32': element count (2305843009213693952) * "
            "data type size (4) exceeds maximum allowed size (9223372036854775807)"
        ),
    ),
    **{
        f"typed_contents: {value} as {datatype}": (
            "integers do not wrap around",
            refused(TOO_LARGE.format(datatype, value)),
        )
        for datatype, value in (("INT8", 128), ("UINT16", 2**16))
    },
}

# Says what it was given: each input again, and what is not a tensor.
ECHO = """
def execute(self, requests):
    import json
    responses = []
    for request in requests:
        tensors = [pb_utils.Tensor(t.name().lower(), t.as_numpy()) for t in request.inputs()]
        said = json.dumps([
            request.request_id(), request.correlation_id(), request.flags(), request.timeout(),
            dict(sorted(json.loads(request.parameters() or "{}").items())),
        ])
        tensors.append(pb_utils.Tensor("said", np.array([said.encode()], dtype=object)))
        responses.append(pb_utils.InferenceResponse(tensors))
    return responses
"""


def write_models(folder: Path) -> None:
    for name in ("simple", "str_id", "cls", "multi_v"):
        shutil.copytree(ROOT / "tests" / "golden" / "models" / name, folder / name)
    named = [(name, f"TYPE_{name.replace('BYTES', 'STRING')}") for name in (*DATATYPES, "BYTES", "BF16")]
    inputs = [f'{{ name: "{name}" data_type: {kind} dims: [ -1 ] optional: true }}' for name, kind in named]
    outputs = [f'{{ name: "{name.lower()}" data_type: {kind} dims: [ -1 ] }}' for name, kind in named]
    outputs.append('{ name: "said" data_type: TYPE_STRING dims: [ 1 ] }')
    config = f"input [ {', '.join(inputs)} ] output [ {', '.join(outputs)} ] instance_group [ {{ kind: KIND_CPU }} ]"
    write_model(folder, "echo", ECHO, config, max_batch_size=0)


def tensor(name: str, shape: Iterable[int] = (2,), datatype: str | None = None, **fields: Any) -> Any:
    return pb.ModelInferRequest.InferInputTensor(
        name=name, datatype=name if datatype is None else datatype, shape=list(shape), **fields
    )


def contents(field: str, values: list[Any] | None = None) -> Any:
    return pb.InferTensorContents(**{field: CONTENTS[field] if values is None else values})


def ask(server: ServerProcess, model: str, *inputs: Any, raw: Iterable[bytes] = (), **fields: Any) -> Any:
    message = pb.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=list(raw), **fields)
    return rpc(server, "ModelInfer", message)


def output(name: str, **parameters: Any) -> Any:
    return pb.ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=parameters)


def simple(server: ServerProcess, **fields: Any) -> Any:
    row = bytes(64)
    inputs = [tensor(name, (1, 16), "INT32") for name in ("INPUT0", "INPUT1")]
    fields = {"outputs": [output("OUTPUT0")]} | fields
    return ask(server, fields.pop("model", "simple"), *inputs, raw=[row, row], **fields)


def ask_typed_contents(server: ServerProcess) -> Answers:
    answers = {
        f"{datatype} in {field}": ask(server, "echo", tensor(datatype, contents=contents(field)))
        for datatype in (*DATATYPES, "BYTES", "BF16", "", "int32", "OTHER")
        for field in CONTENTS
        if datatype or field in ("int_contents", "bytes_contents")
    }
    for datatype, field, value in (
        ("INT8", "int_contents", 127),
        ("INT16", "int_contents", -(2**15)),
        ("UINT8", "uint_contents", 255),
        ("UINT16", "uint_contents", 2**16 - 1),
        ("INT8", "int_contents", 128),
        ("UINT16", "uint_contents", 2**16),
    ):
        given = tensor(datatype, (1,), contents=contents(field, [value]))
        answers[f"{value} as {datatype}"] = ask(server, "echo", given)
    return answers


def ask_wrong_contents(server: ServerProcess) -> Answers:
    empty = pb.InferTensorContents()
    two = contents("int_contents")
    pair = pb.InferTensorContents(int_contents=[1, 2], fp32_contents=[1.0])
    bytes_pair = pb.InferTensorContents(int_contents=[1, 2], bytes_contents=[b"a"])
    return {
        "two fields": ask(server, "echo", tensor("INT32", contents=pair)),
        "two fields, the second fits": ask(server, "echo", tensor("FP32", contents=pair)),
        "two fields and strings": ask(server, "echo", tensor("INT32", contents=bytes_pair)),
        "empty": ask(server, "echo", tensor("INT32", contents=empty)),
        "empty, no elements": ask(server, "echo", tensor("INT32", (0,), contents=empty)),
        "empty strings": ask(server, "echo", tensor("BYTES", contents=empty)),
        "empty, no strings": ask(server, "echo", tensor("BYTES", (0,), contents=empty)),
        "too few": ask(server, "echo", tensor("INT32", (3,), contents=two)),
        "too many": ask(server, "echo", tensor("INT32", (1,), contents=two)),
        "too few strings": ask(server, "echo", tensor("BYTES", (3,), contents=contents("bytes_contents"))),
        "too many strings": ask(server, "echo", tensor("BYTES", (1,), contents=contents("bytes_contents"))),
        "contents and raw": ask(server, "echo", tensor("INT32", contents=two), raw=[bytes(8)]),
        "empty contents and raw": ask(server, "echo", tensor("INT32", contents=empty), raw=[bytes(8)]),
        "contents, and raw of another": ask(
            server, "echo", tensor("INT32", contents=two), tensor("INT64"), raw=[bytes(16)]
        ),
        "raw, and contents of another": ask(
            server, "echo", tensor("INT64"), tensor("INT32", contents=two), raw=[bytes(16)]
        ),
        "neither": ask(server, "echo", tensor("INT32")),
        "neither, no elements": ask(server, "echo", tensor("INT32", (0,))),
        "raw too short": ask(server, "echo", tensor("INT32"), raw=[bytes(4)]),
        "raw too long": ask(server, "echo", tensor("INT32"), raw=[bytes(12)]),
        "raw odd": ask(server, "echo", tensor("INT32"), raw=[bytes(7)]),
        "raw empty": ask(server, "echo", tensor("INT32"), raw=[b""]),
        "raw of no elements": ask(server, "echo", tensor("INT32", (0,)), raw=[b""]),
        "raw left over": ask(server, "echo", tensor("INT32"), raw=[bytes(8), bytes(8)]),
        "raw missing": ask(server, "echo", tensor("INT32"), tensor("INT64"), raw=[bytes(8)]),
        "raw without inputs": ask(server, "echo", raw=[bytes(8)]),
        "raw no strings": ask(server, "echo", tensor("BYTES", (0,)), raw=[b""]),
        "raw not UTF-8": ask(server, "echo", tensor("BYTES", (1,)), raw=[b"\1\0\0\0\xff"]),
    }


def ask_strings(server: ServerProcess) -> Answers:
    """Of a model of ONNX Runtime: in Triton malformed strings end the process of a Python model."""
    word, more = b"\1\0\0\0a", b"\2\0\0\0bc"
    raw = {
        "whole": word + more,
        "cut": word + more[:5],
        "without text": word + more[:4],
        "length cut": word + more[:3],
        "too few": word,
        "too many": word + more + word,
        "something behind": word + more + b"x",
        "too long": word + b"\xff\xff\xff\xff",
        "longer than all": word + b"\3\0\0\0bc",
        "nothing": b"",
        "empty": bytes(8),
    }
    answers = {name: ask(server, "str_id", tensor("IN", (1, 2), "BYTES"), raw=[each]) for name, each in raw.items()}
    for words in ([b"a", b"bc"], [b"", b""], [b"a"], [b"a", b"b", b"c"]):
        given = tensor("IN", (1, 2), "BYTES", contents=contents("bytes_contents", words))
        answers[f"contents {words}"] = ask(server, "str_id", given)
    answers["no rows"] = ask(server, "str_id", tensor("IN", (0, 2), "BYTES"), raw=[b""])
    return answers


def ask_raw_contents(server: ServerProcess) -> Answers:
    return {
        datatype: ask(server, "echo", tensor(datatype, (2,)), raw=[bytes(range(1, 1 + 2 * SIZES[datatype]))])
        for datatype in DATATYPES
        if datatype not in ("BOOL", "FP16", "FP32", "FP64")
    } | {
        "BOOL": ask(server, "echo", tensor("BOOL"), raw=[b"\1\0"]),
        "FP16": ask(server, "echo", tensor("FP16"), raw=[np.array([1, 2], np.float16).tobytes()]),
        "many": ask(server, "echo", tensor("INT64", (1,)), tensor("UINT8", (3,)), raw=[bytes(8), b"abc"]),
    }


def ask_shapes(server: ServerProcess) -> Answers:
    row = bytes(64)

    def shaped(*shape: int) -> Any:
        inputs = tensor("INPUT0", shape, "INT32"), tensor("INPUT1", (1, 16), "INT32")
        return ask(server, "simple", *inputs, raw=[row, row])

    shapes = [(1, 16), (16,), (), (2, 16), (9, 16), (1, 17), (0, 16), (-1, 16), (1, -16), (1, 16, 1), (1, 0)]
    shapes += [(2**31, 16), (1, 2**40), (2**62, 16), (-(2**63), 16), (-1,), (1, 16, -1), (1, 1, -1)]
    answers = {str(list(shape)): shaped(*shape) for shape in shapes}
    for shape in [(-1,), (), (1, 2), (2**61,), (2**62, 4)]:
        answers[f"echo {list(shape)}"] = ask(server, "echo", tensor("INT32", shape), raw=[bytes(8)])
    return answers


def ask_inputs(server: ServerProcess) -> Answers:
    row = bytes(64)
    first, second = (tensor(name, (1, 16), "INT32") for name in ("INPUT0", "INPUT1"))
    other = tensor("OTHER", (1, 16), "INT32")
    answers = {
        "none": ask(server, "simple"),
        "one missing": ask(server, "simple", first, raw=[row]),
        "one unknown": ask(server, "simple", first, other, raw=[row, row]),
        "one too many": ask(server, "simple", first, second, other, raw=[row] * 3),
        "one twice": ask(server, "simple", first, first, raw=[row, row]),
        "one three times": ask(server, "simple", first, second, first, raw=[row] * 3),
        "one without a name": ask(server, "simple", first, tensor("", (1, 16), "INT32"), raw=[row, row]),
        "optional, none": ask(server, "echo"),
        "optional, unknown": ask(server, "echo", tensor("OTHER", (1,), "INT32"), raw=[bytes(4)]),
        "with an id": ask(server, "simple", first, raw=[row], id="it"),
    }
    for datatype in ("", "int32", "TYPE_INT32", "OTHER", "FP32", "BF16", "BYTES"):
        inputs = tensor("INPUT0", (1, 16), datatype), second
        answers[f"datatype '{datatype}'"] = ask(server, "simple", *inputs, raw=[row, row])
    return answers


def ask_parameters(server: ServerProcess) -> Answers:
    keys = ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output", "headers"]
    keys += ["triton_enable_empty_final_response", "triton_final_response", "own", ""]
    given = tensor("UINT8", (1,))
    answers = {
        f"'{key}' as {kind}": ask(server, "echo", given, raw=[b"a"], parameters={key: value})
        for key in keys
        for kind, value in KINDS.items()
    }
    for key, value in (
        ("sequence_id", pb.InferParameter(int64_param=0)),
        ("sequence_id", pb.InferParameter(string_param="")),
        ("sequence_id", pb.InferParameter(string_param="s" * 200)),
        ("sequence_start", pb.InferParameter(bool_param=False)),
        ("priority", pb.InferParameter(int64_param=0)),
        ("priority", pb.InferParameter(uint64_param=2**63)),
        ("timeout", pb.InferParameter(int64_param=0)),
        ("triton_enable_empty_final_response", pb.InferParameter(bool_param=False)),
        ("own", pb.InferParameter(bool_param=False)),
        ("own", pb.InferParameter(string_param="")),
        ("own", pb.InferParameter(string_param="a\0b")),
        ("own\0", pb.InferParameter(string_param="a")),
        ("ö", pb.InferParameter(string_param="ü")),
        ("own", pb.InferParameter(int64_param=-(2**63))),
    ):
        asked = ask(server, "echo", given, raw=[b"a"], parameters={key: value})
        answers[f"{key!r} {str(value).strip() or 'none'}"] = asked
    many = {"sequence_id": KINDS["int64"], "sequence_start": KINDS["bool"], "own": KINDS["string"], "b": KINDS["bool"]}
    answers["many"] = ask(server, "echo", given, raw=[b"a"], parameters=many, id="r")
    for key in ("own", "binary_data_size", "shared_memory_offset", "classification"):
        with_parameter = tensor("UINT8", (1,), parameters={key: KINDS["int64"]})
        answers[f"'{key}' of an input"] = ask(server, "echo", with_parameter, raw=[b"a"])
    return answers


def ask_names(server: ServerProcess) -> Answers:
    versions = ["", "1", "3", "2", "0", "-1", "-2", "01", "+1", " 1", "1 ", "1x", "x", "1.5", "1e0", "0x1"]
    versions += ["9223372036854775807", "9223372036854775808", "99999999999999999999", "-9223372036854775808", "1\0"]
    row = np.arange(4, dtype=np.float32).tobytes()
    answers = {
        f"version {version!r}": ask(server, "multi_v", tensor("IN", (1, 4), "FP32"), raw=[row], model_version=version)
        for version in versions
    }
    for name in ("", "missing", "Simple", "simple ", "simple/", "../simple", "simple\0", "ä", "m" * 300):
        answers[f"model {name!r:.20}"] = simple(server, model=name)
    answers["missing, a version"] = simple(server, model="missing", model_version="1")
    answers["missing, no version"] = simple(server, model="missing", model_version="x")
    for identifier in ("", "1", "ä", "a b", "a\nb", "a\0b", "i" * 500):
        answers[f"id {identifier!r:.20}"] = simple(server, id=identifier)
    answers["id of an error"] = ask(server, "simple", id="a\nb")
    answers["id of another error"] = ask(server, "simple", id="ä")
    return answers


def ask_outputs(server: ServerProcess) -> Answers:
    def outputs(*wanted: Any, **fields: Any) -> Any:
        return simple(server, outputs=wanted, **fields)

    def classified(**parameters: Any) -> Any:
        row = np.array([0.5, 3, -1, 2] * 2, np.float32).tobytes()
        wanted = [output("OUT", **parameters)]
        return ask(server, "cls", tensor("IN", (2, 4), "FP32"), raw=[row], outputs=wanted)

    answers = {
        "one": outputs(output("OUTPUT1")),
        "other order": outputs(output("OUTPUT1"), output("OUTPUT0")),
        "unknown": outputs(output("OTHER")),
        "unknown, with an id": outputs(output("OTHER"), id="it"),
        "one unknown": outputs(output("OUTPUT0"), output("OTHER")),
        "twice": outputs(output("OUTPUT0"), output("OUTPUT0")),
        "without a name": outputs(output("")),
        "integers classified": outputs(output("OUTPUT0", classification=pb.InferParameter(int64_param=2))),
        "one of two classified": outputs(
            output("OUTPUT1", classification=pb.InferParameter(int64_param=1)), output("OUTPUT0")
        ),
        "half classified": ask(
            server,
            "echo",
            tensor("FP16"),
            raw=[np.array([1, 2], np.float16).tobytes()],
            outputs=[output("fp16", classification=pb.InferParameter(int64_param=2))],
        ),
        "not batched, classified": ask(
            server,
            "echo",
            tensor("INT8", (3,)),
            raw=[b"\1\3\2"],
            outputs=[output("int8", classification=pb.InferParameter(int64_param=2))],
        ),
        "empty classified": ask(
            server,
            "echo",
            tensor("INT8", (0,)),
            raw=[b""],
            outputs=[output("int8", classification=pb.InferParameter(int64_param=2))],
        ),
        "not made": ask(server, "echo", tensor("INT8", (1,)), raw=[b"a"], outputs=[output("int16"), output("int8")]),
    }
    for kind, value in KINDS.items():
        answers[f"classification as {kind}"] = classified(classification=value)
        answers[f"binary_data as {kind}"] = outputs(output("OUTPUT0", binary_data=value))
        answers[f"own as {kind}"] = outputs(output("OUTPUT0", own=value))
    for count in (0, 1, 3, 4, 5, 2**31):
        answers[f"classes {count}"] = classified(classification=pb.InferParameter(int64_param=count))
    return answers
