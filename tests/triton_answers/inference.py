"""Inference over HTTP in JSON: requests that Triton takes, and those that it refuses."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.triton_answers import Answers, http
from tests.unit import onnx_models as models

OPTIONS = ()

ROW = list(range(16))
PORTS = (("input", "IN"), ("output", "OUT"))
INTEGERS = {f"{sign}INT{bits}": bits for sign in ("", "U") for bits in (8, 16, 32, 64)}
DATATYPES = ("BOOL", *INTEGERS, "FP16", "FP32", "FP64", "BYTES")
# Those that differ in what their elements may be.
DISTINCT = ("BOOL", "INT16", "UINT64", "FP16", "FP32", "FP64", "BYTES")
PARSER = "failed to parse the request JSON buffer: "

REPLACEMENTS = ("removed", None, 0, -1, 1.5, True, "", "text", [], [1], {}, {"key": 1})

NEWER = "as newer releases answer"
ABSENT = "null for an optional field means that it is absent"
REFUSED = "what Triton passes over in silence is refused by name"
LAST = "of a key that occurs twice, the last one counts"


def refusal(error: str) -> Answers:
    return {"status": 400, "type": "application/json", "body": {"error": error}}


def of_one(value: int = 1, **more: Any) -> Answers:
    """The answer to `one()`."""
    output = {"name": "OUT", "datatype": "INT32", "shape": [1], "data": [value]}
    body = {"model_name": "id_INT32", "model_version": "1", "outputs": [output]} | more
    return {"status": 200, "type": "application/json", "body": body}


TOO_FEW = refusal("Failed to parse 'data' field: shape does not match true shape")
TOO_DEEP = "JSON nesting depth exceeds maximum allowed limit (100)"
NOT_AN_OBJECT = refusal("Unable to parse 'parameters': attempt to access JSON non-object as object")
OTHERWISE: dict[str, tuple[str, Any]] = {
    **{f"elements: {datatype} []": (NEWER, TOO_FEW) for datatype in DISTINCT if datatype not in ("FP16", "BYTES")},
    **{
        f"{ask}: {question}": (NEWER, TOO_FEW)
        for ask, questions in (
            ("shapes", ("[2, 16]", "[1, 17]", "[9, 16]")),
            ("lengths", ("[1] []", "[2] []", "[2] [1]", "[1, 2] []", "[1, 2] [1]")),
            ("mutations", ("inputs.0.data []", 'inputs.0.data.0 "removed"', "inputs.0.data.0 []")),
        )
        for question in questions
    },
    **{f"depths: INT32 {depth}": (NEWER, refusal(f"Unable to parse 'data': {TOO_DEEP}")) for depth in (100, 102, 1000)},
    **{f"depths: BYTES {depth}": (NEWER, refusal(TOO_DEEP)) for depth in (100, 102, 1000)},
    "outputs: twice": (NEWER, refusal("[request id: <id_unknown>] output 'OUTPUT0' already exists in request")),
    "mutations: id null": (ABSENT, of_one()),
    "mutations: parameters null": (ABSENT, of_one(id="1")),
    "mutations: outputs null": (ABSENT, of_one(id="1")),
    **{
        f"mutations: {port}.0.parameters {json.dumps(value)}": (REFUSED, NOT_AN_OBJECT)
        for port in ("inputs", "outputs")
        for value in REPLACEMENTS
        if not isinstance(value, dict) and value is not None and value != "removed"
    },
    "documents: NUL after": (REFUSED, refusal(PARSER)),
    "duplicate_keys: id": (LAST, of_one(id="b")),
    "duplicate_keys: inputs": (LAST, of_one()),
    "duplicate_keys: data": (LAST, of_one(2)),
    "duplicate_keys: parameters": (LAST, of_one()),
    "versions_and_models: model multi%5Fv": (
        "the name of a model may be percent-encoded",
        {
            "status": 200,
            "type": "application/json",
            "body": {
                "model_name": "multi_v",
                "model_version": "3",
                "outputs": [{"name": "OUT", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}],
            },
        },
    ),
}


def write_models(folder: Path) -> None:
    write_golden_models(folder, "simple", "cls", "multi_v")
    write_identities(folder, DATATYPES)


def write_golden_models(folder: Path, *names: str) -> None:
    for name in names:
        shutil.copytree(ROOT / "tests" / "golden" / "models" / name, folder / name)


def write_identities(folder: Path, datatypes: tuple[str, ...]) -> None:
    """Models `id_DATATYPE` from IN to OUT, of any length."""
    for datatype in datatypes:
        write_identity(folder, f"id_{datatype}", datatype, ["n"])


def write_identity(folder: Path, name: str, datatype: str, dims: list[Any], batch: int = 0) -> None:
    kind = "STRING" if datatype == "BYTES" else datatype
    sizes = ", ".join("-1" if isinstance(dim, str) else str(dim) for dim in dims)
    ports = [f'{port} [ {{ name: "{each}" data_type: TYPE_{kind} dims: [ {sizes} ] }} ]' for port, each in PORTS]
    shape = ["batch", *dims] if batch else dims
    model = models.build(
        [onnx.helper.make_node("Identity", ["IN"], ["OUT"])],
        [models.tensor("IN", datatype, shape)],
        [models.tensor("OUT", datatype, shape)],
    )
    config = "\n".join(['backend: "onnxruntime"', f"max_batch_size: {batch}", *ports])
    models.write_version(model, folder, name, config)


def infer(server: ServerProcess, model: str, document: Any, **headers: str) -> Any:
    return http(server, "POST", f"/v2/models/{model}/infer", document, headers)


def tensor(name: str, shape: list[Any], data: Any, datatype: str = "INT32", **more: Any) -> Any:
    return {"name": name, "shape": shape, "datatype": datatype, "data": data, **more}


def simple(**more: Any) -> Any:
    """A request of the model `simple`."""
    return {"inputs": [tensor(name, [1, 16], ROW) for name in ("INPUT0", "INPUT1")], **more}


def one(**more: Any) -> Any:
    """A request of the model `id_INT32`."""
    return {"inputs": [tensor("IN", [1], [1])], **more}


def without_reason(answer: Any) -> Any:
    """The answer without the JSON parser's own words."""
    body = answer.get("body")
    error = body.get("error", "") if isinstance(body, dict) else ""
    if PARSER in error:
        answer["body"]["error"] = error.partition(PARSER)[0] + PARSER
    return answer


def ask_shapes(server: ServerProcess) -> Answers:
    """Larger shapes end Triton, which takes memory for what they announce."""
    shapes: list[Any] = [
        *([1, 16], [16], [2, 16], [1, 17], [0, 16], [-1, 16], [1, 16, 1], [1.5, 16], ["1", 16], [], [1], [1, 0]),
        *([9, 16], [[1, 16]], [True, 16], [None, 16], [2**64, 16]),
        *([1, -16], [0], [0, 0], [1, 1, 16], [16, 1], [8, 2], 16, "1,16", None, {"0": 1}),
    ]
    return {
        json.dumps(shape): infer(
            server, "simple", {"inputs": [tensor("INPUT0", shape, ROW), tensor("INPUT1", [1, 16], ROW)]}
        )
        for shape in shapes
    }


def ask_lengths(server: ServerProcess) -> Answers:
    answers = {}
    for shape in ([0], [1], [2], [1, 2], [], [0, 1]):
        for data in ([], [1], [1, 2], [[1], [2]], [[[1], 2]], [[], 1, 2, []]):
            answers[f"{shape} {data}"] = infer(server, "id_INT32", {"inputs": [tensor("IN", shape, data)]})
    return answers


def ask_elements(server: ServerProcess) -> Answers:
    """One element of each kind of JSON."""
    elements = [
        "0",
        "1",
        "-1",
        "-0",
        "1.0",
        "1.5",
        "1e2",
        "true",
        "false",
        "null",
        '""',
        '"a"',
        "[]",
        "[1]",
        "{}",
        "NaN",
    ]
    return {
        f"{datatype} {element}": without_reason(
            infer(
                server,
                f"id_{datatype}",
                f'{{"inputs":[{{"name":"IN","shape":[1],"datatype":"{datatype}","data":[{element}]}}]}}'.encode(),
            )
        )
        for datatype in DISTINCT
        for element in elements
    }


def ask_limits(server: ServerProcess) -> Answers:
    answers = {}
    for datatype, bits in INTEGERS.items():
        least, most = (0, 2**bits - 1) if datatype[0] == "U" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        document = {"inputs": [tensor("IN", [3], [least, most, 1], datatype)]}
        answers[datatype] = infer(server, f"id_{datatype}", document)
    for datatype in ("INT64", "UINT64"):
        for value in (-(2**63) - 1, 2**63, 2**64, 10**30):
            document = {"inputs": [tensor("IN", [1], [value], datatype)]}
            answers[f"{datatype} {value}"] = without_reason(infer(server, f"id_{datatype}", document))
    for datatype, value in (
        *(
            ("FP64", text)
            for text in ("1.7976931348623157e308", "5e-324", "-0.0", "0.1", "1e15", "1e16", "123456789012")
        ),
        *(("FP64", text) for text in ("1e999", "9007199254740993", "18446744073709551615", "36893488147419103232")),
        *(("FP32", text) for text in ("3.4028234663852886e38", "1e-45", "0.1", "16777217", "1e10", "1e22", "-1e-7")),
    ):
        text = f'{{"inputs":[{{"name":"IN","shape":[1],"datatype":"{datatype}","data":[{value}]}}]}}'
        answers[f"{datatype} {value}"] = without_reason(infer(server, f"id_{datatype}", text.encode()))
    return answers


def ask_special_numbers(server: ServerProcess) -> Answers:
    answers = {}
    for datatype in ("FP32", "FP64"):
        for word in ("NaN", "Infinity", "-Infinity", "Inf", "-Inf", "-NaN", "nan", "inf", '"NaN"'):
            document = f'{{"inputs":[{{"name":"IN","shape":[1],"datatype":"{datatype}","data":[{word}]}}]}}'
            answer = without_reason(infer(server, f"id_{datatype}", document.encode()))
            answers[f"{datatype} {word}"] = answer | ({"body": repr(answer["body"])} if "NaN" in word else {})
    return answers


def ask_strings(server: ServerProcess) -> Answers:
    strings = ["", "a", "é", "\u20ac", "\U0001f600", '"', "\\", "/", "\n\t\r\b\f", "\x01\x1f", "\x7f", "a" * 300]
    strings += ["null", "\u2028", "{}", "</script>"]
    answers = {
        repr(text[:20]): infer(server, "id_BYTES", {"inputs": [tensor("IN", [1], [text], "BYTES")]}) for text in strings
    }
    for data in ([], ["a"], ["a", "b", "c"], [["a"], ["b"]], [["a", ["b"]]], ["a", 1], ["a", None], [True], [{}], "ab"):
        answers[str(data)] = infer(server, "id_BYTES", {"inputs": [tensor("IN", [2], data, "BYTES")]})
    return answers


def ask_datatypes(server: ServerProcess) -> Answers:
    names = [*DATATYPES, "BF16", "STRING", "int32", "TYPE_INT32", "", " INT32", "INT32 ", "FLOAT", "INT128"]
    return {
        repr(name): infer(server, "id_INT32", {"inputs": [tensor("IN", [1], [data], name)]})
        for name in names
        for data in ["a" if name == "BYTES" else name == "BOOL" or 1]
    }


def ask_inputs(server: ServerProcess) -> Answers:
    first, second = (tensor(name, [1, 16], ROW) for name in ("INPUT0", "INPUT1"))
    two = [tensor(name, [2, 16], ROW * 2) for name in ("INPUT0", "INPUT1")]
    lists: dict[str, Any] = {
        "none": [],
        "first": [first],
        "second": [second],
        "reversed": [second, first],
        "first twice": [first, first],
        "all and first": [first, second, first],
        "unknown": [first, second, tensor("INPUT2", [1, 16], ROW)],
        "only unknown": [tensor("INPUT2", [1, 16], ROW)],
        "unknown for second": [first, tensor("input1", [1, 16], ROW)],
        "empty name": [first, tensor("", [1, 16], ROW)],
        "long name": [first, tensor("n" * 300, [1, 16], ROW)],
        "other batch": [first, two[1]],
        "batch": two,
        "batch of 9": [tensor(name, [9, 16], ROW * 9) for name in ("INPUT0", "INPUT1")],
        "batch of 0": [tensor(name, [0, 16], []) for name in ("INPUT0", "INPUT1")],
        "null in list": [first, None],
        "number in list": [first, 1],
        "list in list": [first, []],
        "text in list": [first, "INPUT1"],
        "datatype": [first, tensor("INPUT1", [1, 16], ROW, "INT64")],
        "output as input": [first, tensor("OUTPUT0", [1, 16], ROW)],
        "unknown member": [first, second | {"extra": 1}],
    }
    return {name: infer(server, "simple", {"inputs": inputs}) for name, inputs in lists.items()}


def ask_outputs(server: ServerProcess) -> Answers:
    lists: dict[str, Any] = {
        "none": [],
        "first": [{"name": "OUTPUT0"}],
        "reversed": [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}],
        "twice": [{"name": "OUTPUT0"}, {"name": "OUTPUT0"}],
        "unknown": [{"name": "OUTPUT2"}],
        "known and unknown": [{"name": "OUTPUT0"}, {"name": "OUTPUT2"}],
        "input": [{"name": "INPUT0"}],
        "empty name": [{"name": ""}],
        "unknown parameter": [{"name": "OUTPUT0", "parameters": {"other": 1}}],
        "unknown member": [{"name": "OUTPUT0", "datatype": "INT32", "shape": [1]}],
        "null in list": [None],
        "number in list": [1],
        "text in list": ["OUTPUT0"],
        "list in list": [["OUTPUT0"]],
    }
    answers = {name: infer(server, "simple", simple(outputs=outputs)) for name, outputs in lists.items()}
    answers |= {
        f"binary_data_output {flag}, {name}": infer(
            server, "simple", simple(parameters={"binary_data_output": flag}, outputs=outputs)
        )
        for flag in (False, True)
        for name, outputs in (("none", []), ("first", [{"name": "OUTPUT0"}]))
    }
    for flag in (None, False, True):
        for binary in (None, False, True):
            for classes in (None, 0, 1, 5):
                own = {"binary_data": binary, "classification": classes}
                given = {key: value for key, value in own.items() if value is not None}
                document = one(outputs=[{"name": "OUT", "parameters": given}])
                if flag is not None:
                    document["parameters"] = {"binary_data_output": flag}
                answers[f"binary_data_output {flag}, {given}"] = infer(server, "id_INT32", document)
        if flag is not None:
            answers[f"all, {flag}"] = infer(server, "id_INT32", one(parameters={"binary_data_output": flag}))
    return answers


def ask_classes(server: ServerProcess) -> Answers:
    answers = {}
    for datatype in DATATYPES:
        if datatype in ("FP16", "BYTES"):  # JSON has no form for it, Triton ends
            continue
        data = [True, False, True] if datatype == "BOOL" else [1, 3, 2]
        for classes in (1, 2, 9):
            outputs = [{"name": "OUT", "parameters": {"classification": classes}}]
            document = {"inputs": [tensor("IN", [3], data, datatype)], "outputs": outputs}
            answers[f"{datatype} {classes}"] = infer(server, f"id_{datatype}", document)
    rows: dict[str, Any] = {
        "ties": [1, 2, 2, 1],
        "negative": [-1, -2.5, 0, 0.125],
        "digits": [1e10, 0.1, 1e-9, 123456.789],
        "batch": [1, 2, 3, 4, 4, 3, 2, 1],
    }
    for name, row in rows.items():
        for classes in (1, 3, 4, 5):
            outputs = [{"name": "OUT", "parameters": {"classification": classes}}]
            document = {"inputs": [tensor("IN", [len(row) // 4, 4], row, "FP32")], "outputs": outputs}
            answers[f"labels, {name} {classes}"] = infer(server, "cls", document)
    return answers


def ask_parameters(server: ServerProcess) -> Answers:
    values: dict[str, list[Any]] = {
        "priority": [0, 1, 2, 2**63, 2**64 - 1, 2**64, -1, 1.0, "1", True],
        "timeout": [0, 10**9, 2**63, 2**64 - 1, 2**64, -1, 1.0, "1", True],
        "sequence_id": [0, 1, 2**63, 2**64 - 1, 2**64, -1, 1.5, "", "a", "a" * 128, "a" * 129, True, [], {}],
        "sequence_start": [True, False, 1, "true"],
        "sequence_end": [True, False, 0, "false"],
        "binary_data_output": [1, 0, "true", "false"],
        "headers": ["a", 1, {}, []],
        "custom": ["", "a", 0, -1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 1.5, 1e300, True, [], {}, [1]],
        "triton_custom": [1, "a", None],
        "TRITON_custom": [1],
        "triton_": [1],
        "triton": [1],
        "": [1, "a"],
        "binary_data_size": [1, "a"],
        "classification": [1],
        "shared_memory_region": ["a"],
    }
    return {
        f"{key} {json.dumps(value)[:30]}": without_reason(infer(server, "id_INT32", one(parameters={key: value})))
        for key, each in values.items()
        for value in each
    }


def ask_ids(server: ServerProcess) -> Answers:
    ids = ["", "1", "a b", "é", '"', "\\", "\n", "\x01", "a" * 2000, "<id_unknown>", "0"]
    answers = {repr(name[:20]): infer(server, "id_INT32", one(id=name)) for name in ids}
    answers |= {f"error {name[:20]!r}": infer(server, "id_INT32", {"id": name, "inputs": []}) for name in ids}
    return answers


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in members:
        yield (*path, key)
        yield from paths(each, (*path, key))


def mutated(document: Any, path: tuple[Any, ...], replacement: Any) -> Any:
    document = copy.deepcopy(document)
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    if replacement == "removed":
        del parent[path[-1]]
    else:
        parent[path[-1]] = replacement
    return document


def ask_mutations(server: ServerProcess) -> Answers:
    """Each member of a valid request is removed, or replaced by a value of each kind."""
    document = {
        "id": "1",
        "parameters": {"sequence_id": 1, "own": 1},
        "inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [1], "parameters": {}}],
        "outputs": [{"name": "OUT", "parameters": {"binary_data": False, "classification": 0}}],
    }
    answers = {}
    for path in paths(document):
        for replacement in REPLACEMENTS:
            name = f"{'.'.join(map(str, path))} {json.dumps(replacement)}"
            answers[name] = infer(server, "id_INT32", mutated(document, path, replacement))
    return answers


def ask_documents(server: ServerProcess) -> Answers:
    valid = json.dumps(one())
    texts = {
        **{text: text for text in ("", " ", "{}", "[]", "null", "1", '"a"', "{", "}", "{]", "nonsense", "{'a':1}")},
        **{text: text for text in ('{"inputs":[}', '{"inputs":[]', '{"inputs":[],}', "{}{}", "{} x", "// c\n{}")},
        "blanks": f" \n\t{valid}\r\n ",
        "byte order mark": "\ufeff" + valid,
        "comment": valid + "/* end */",
        "comma after the last": valid[:-1] + ",}",
        "text after": valid + "x",
        "NUL after": valid + "\0",
        "second document": valid + valid,
        "cut off": valid[:-5],
        "control character in a name": valid.replace('"IN"', '"I\x01N"'),
        "escaped name": valid.replace('"IN"', '"\\u0049N"'),
        "plus": valid.replace("[1]", "[+1]"),
        "leading zero": valid.replace("[1]", "[01]"),
        "hexadecimal": valid.replace("[1]", "[0x1]"),
    }
    return {name: without_reason(infer(server, "id_INT32", text.encode())) for name, text in texts.items()}


def ask_depths(server: ServerProcess) -> Answers:
    answers = {}
    for datatype, element in (("INT32", "1"), ("BYTES", '"a"')):
        for depth in (1, 2, 98, 99, 100, 102, 1000):
            data = "[" * depth + element + "]" * depth
            document = f'{{"inputs":[{{"name":"IN","shape":[1],"datatype":"{datatype}","data":{data}}}]}}'
            answers[f"{datatype} {depth}"] = without_reason(infer(server, f"id_{datatype}", document.encode()))
    return answers


def ask_duplicate_keys(server: ServerProcess) -> Answers:
    one = '{"name":"IN","shape":[1],"datatype":"INT32","data":[1]}'
    texts = {
        "id": f'{{"id":"a","id":"b","inputs":[{one}]}}',
        "inputs": f'{{"inputs":[],"inputs":[{one}]}}',
        "data": f'{{"inputs":[{one[:-1]},"data":[2]}}]}}',
        "parameters": f'{{"parameters":{{"own":[]}},"parameters":{{}},"inputs":[{one}]}}',
    }
    return {name: infer(server, "id_INT32", text.encode()) for name, text in texts.items()}


def ask_versions_and_models(server: ServerProcess) -> Answers:
    document = {"inputs": [tensor("IN", [1, 4], [1, 2, 3, 4], "FP32")]}
    tails = ["/infer", "/versions/1/infer", "/versions/3/infer", "/versions/2/infer", "/versions/0/infer"]
    tails += [
        "/versions/-1/infer",
        "/versions/01/infer",
        "/versions/a/infer",
        "/versions//infer",
        "/versions/1.0/infer",
    ]
    tails += ["/versions/9223372036854775807/infer", "/versions/9223372036854775808/infer", "/versions/+1/infer"]
    tails += ["/versions/1/versions/1/infer", "/version/1/infer", "/versions/1/infer/", "/infer/", "//infer", "/Infer"]
    answers = {tail: http(server, "POST", f"/v2/models/multi_v{tail}", document) for tail in tails}
    for name in ("none", "Multi_v", "multi_v%20", "multi%5Fv", "", ".", "..", "multi_v.", "%C3%A9", "a" * 300):
        answers[f"model {name[:20]}"] = http(server, "POST", f"/v2/models/{name}/infer", document)
    return answers


def ask_content_types(server: ServerProcess) -> Answers:
    types = [
        "application/json",
        "text/plain",
        "application/octet-stream",
        "nonsense",
        "",
        "application/json; charset=x",
    ]
    types += ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "multipart/form-data"]
    answers = {repr(name): infer(server, "id_INT32", one(), **{"Content-Type": name}) for name in types}
    for name in ("application/json", "text/html", "*/*", "image/png", ""):
        answers[f"accept {name!r}"] = infer(server, "id_INT32", one(), Accept=name)
    return answers
