"""Binary tensors over HTTP: after JSON, and as the whole body; the lengths, encodings and compressions of bodies."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from http.client import HTTPConnection
from math import prod
from pathlib import Path
from typing import Any

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers, http
from tests.triton_answers.inference import (
    DATATYPES,
    NEWER,
    ROW,
    of_one,
    one,
    refusal,
    simple,
    without_reason,
    write_golden_models,
    write_identities,
    write_identity,
)

OPTIONS = ()
LENGTH = "Inference-Header-Content-Length"
CONTENT = bytes(range(1, 65))

BROKEN = "what is broken or more than the compressed body is refused"
RFC = "as RFC 9110 says"
WHOLE = "strings do not end at a NUL"
UTF8 = "ONNX Runtime's Python binding takes UTF-8 only"
EARLY = "the whole content of strings is checked before the execution"
EARLIER = "the error tells what is missing"


def string(*items: bytes) -> bytes:
    return b"".join(len(item).to_bytes(4, "little") + item for item in items)


def of_strings(content: bytes, form: bool) -> Answers:
    """The answer of id_BYTES with one string."""
    encoded = string(content)
    values: Answers = {"parameters": {"binary_data_size": len(encoded)}} if form else {"data": [content.decode()]}
    output = {"name": "OUT", "datatype": "BYTES", "shape": [1], **values}
    answer = {
        "status": 200,
        "type": "application/octet-stream" if form else "application/json",
        "body": {"model_name": "id_BYTES", "model_version": "1", "outputs": [output]},
    }
    return answer | ({"binary": base64.b64encode(encoded).decode()} if form else {})


def compressed_answer(encoding: str | None) -> Answers:
    return of_one() | {"encoding": encoding}


def not_inflated(reason: str) -> Answers:
    return refusal(f"failed to decompress the request body: {reason}") | {"encoding": None}


NO_LENGTH = refusal(
    "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing inputs in "
    "binary data format"
)
OTHERWISE: dict[str, tuple[str, Any]] = {
    **{
        f"strings: {name} {form}": (WHOLE, of_strings(content, form))
        for name, content in (("NUL", b"a\0b"), ("only NUL", b"\0"))
        for form in (True, False)
    },
    **{
        f"strings: not UTF-8 {form}": (
            UTF8,
            refusal(
                "input 'IN' of model 'id_BYTES' has strings that are not UTF-8, which ONNX Runtime's Python binding "
                "does not take: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"
            )
            | {"type": "text/plain"},
        )
        for form in (True, False)
    },
    **{
        f"strings: {name} {form}": (
            EARLY,
            refusal(
                f"incomplete string data for inference input 'IN', expecting string of length {length} but only "
                "3 bytes available"
            ),
        )
        for name, length in (("short content", 5), ("huge length", 2**32 - 1))
        for form in (True, False)
    },
    **{
        f"lengths: {name}": (NEWER, refusal(f"Unable to parse {LENGTH}, {reason}got: {text}") | {"type": "text/plain"})
        for reason, lengths in (
            (
                "",
                {
                    **{repr(text): text for text in ("a", "1.5", "0x10", "1a", "1 2")},
                    **{"''": "", "' '": "", "JSON, letters after": "258abc", "JSON, fraction": "258.0"},
                },
            ),
            (
                f"value is out of range [ {-(2**31)}, {2**31 - 1} ], ",
                {repr(text): text for text in ("2147483648", "-2147483649", "99999999999999999999999")},
            ),
        )
        for name, text in lengths.items()
    },
    "lengths: none": (EARLIER, NO_LENGTH),
    "lengths: none, no size": (EARLIER, NO_LENGTH),
    **{
        f"encodings: {name} as {encoding}": (BROKEN, not_inflated(reason))
        for encoding in ("gzip", "deflate")
        for name, reason in (
            ("plain", "Error -3 while decompressing data: incorrect header check"),
            ("raw deflate", "Error -3 while decompressing data: incorrect header check"),
            ("cut off", "it ends before the compressed data does"),
            ("bytes after", "there is more after the compressed data"),
            ("two members", "there is more after the compressed data"),
        )
    },
    "encodings: gzip as 'GZIP'": (RFC, compressed_answer(None)),
    "encodings: gzip as 'gzip '": (RFC, compressed_answer(None)),
    "accepted_encodings: GZIP": (RFC, compressed_answer("gzip")),
    "accepted_encodings: gzip ;q=1": (RFC, compressed_answer("gzip")),
    "accepted_encodings: gzip;Q=0.5": (RFC, compressed_answer("gzip")),
    "accepted_encodings: gzip; q=0.5, deflate; q=0.6": (RFC, compressed_answer("deflate")),
}


def write_models(folder: Path) -> None:
    write_golden_models(folder, "simple", "str_id", "cls")
    write_identities(folder, DATATYPES)
    for name, datatype, dims in (
        ("raw_fixed", "FP32", [4]),
        ("raw_free", "INT16", ["n"]),
        ("raw_half_free", "INT32", [2, "n"]),
        ("raw_two_free", "INT32", ["m", "n"]),
        ("raw_string", "BYTES", [1]),
        ("raw_strings", "BYTES", [2]),
    ):
        write_identity(folder, name, datatype, dims, batch=8)


def binary(
    server: ServerProcess,
    model: str,
    tensors: list[tuple[str, list[int], str, bytes]],
    *,
    more: dict[str, Any] | None = None,
    sizes: list[Any] | None = None,
    tail: bytes = b"",
    length: str | None = "",
    **headers: str,
) -> Any:
    """Ask with binary tensors. `sizes` replace those of the tensors, `length` that of the JSON; None: no header."""
    inputs = [
        {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}
        for (name, shape, datatype, content), size in zip(tensors, sizes or [len(t[3]) for t in tensors], strict=True)
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}} | (more or {})).encode()
    if length is not None:
        headers[LENGTH] = length or str(len(head))
    body = head + b"".join(tensor[3] for tensor in tensors) + tail
    return without_reason(http(server, "POST", f"/v2/models/{model}/infer", body, headers))


def ask_contents(server: ServerProcess) -> Answers:
    answers = {}
    for datatype in DATATYPES:
        if datatype == "BYTES":
            continue
        size = {"BOOL": 1, "INT8": 1, "UINT8": 1}.get(datatype) or int(datatype[-2:]) // 8
        for count, given in ((0, 0), (3, 3 * size), (2, 2 * size - 1), (2, 0), (0, size)):
            content = b"\1\0\1\1"[:given] if datatype == "BOOL" else CONTENT[:given]
            answers[f"{datatype} {count} {given}"] = binary(
                server, f"id_{datatype}", [("IN", [count], datatype, content)]
            )
    answers["BOOL other bytes"] = binary(server, "id_BOOL", [("IN", [3], "BOOL", b"\0\2\xff")])
    for text in ("00000000000000c0", "000000000000f07f", "000000000000f8ff", "0100000000000000"):
        for form in (True, False):
            answers[f"FP64 {text} {form}"] = binary(
                server,
                "id_FP64",
                [("IN", [1], "FP64", bytes.fromhex(text))],
                more={"parameters": {"binary_data_output": form}},
            )
            if not form and "body" in answers[f"FP64 {text} {form}"]:
                answers[f"FP64 {text} {form}"] |= {"body": repr(answers[f"FP64 {text} {form}"]["body"])}
    for name, bits in (("FP16", "003c"), ("BF16", "803f")):
        for form in (True, False):
            answers[f"{name} {form}"] = binary(
                server,
                "id_FP16",
                [("IN", [1], name, bytes.fromhex(bits))],
                more={"parameters": {"binary_data_output": form}},
            )
    return answers


def ask_strings(server: ServerProcess) -> Answers:
    contents: dict[str, tuple[int, bytes]] = {
        "empty": (1, string(b"")),
        "text": (1, string("é€".encode())),
        "NUL": (1, string(b"a\0b")),
        "only NUL": (1, string(b"\0")),
        "not UTF-8": (1, string(b"\xff\xfe")),
        "several": (3, string(b"a", b"", b"ccc")),
        "none": (0, b""),
        "none but bytes": (0, string(b"a")),
        "too few": (2, string(b"a")),
        "too many": (1, string(b"a", b"b")),
        "short length": (1, b"\1\0\0"),
        "short length of second": (2, string(b"a") + b"\1\0"),
        "short content": (1, b"\5\0\0\0abc"),
        "huge length": (1, b"\xff\xff\xff\xffabc"),
        "nothing": (1, b""),
        "bytes after": (1, string(b"a") + b"x"),
    }
    answers = {}
    for name, (count, content) in contents.items():
        for form in (True, False):
            answers[f"{name} {form}"] = binary(
                server,
                "id_BYTES",
                [("IN", [count], "BYTES", content)],
                more={"parameters": {"binary_data_output": form}},
            )
    return answers


def ask_ranks(server: ServerProcess) -> Answers:
    """Shapes of each rank. A batch of 0 ends Triton."""
    answers = {}
    for model, datatype in (("raw_fixed", "FP32"), ("raw_half_free", "INT32"), ("id_INT32", "INT32")):
        for shape in ([], *([n] for n in (1, 2, 4)), *([m, n] for m in (1, 2, 9) for n in (0, 1, 2, 4))):
            answers[f"{model} {shape}"] = binary(server, model, [("IN", shape, datatype, bytes(4 * prod(shape)))])
        for shape in ([1, 2, 3], [2, 2, 1], [1, 0, 2], [1, 2, 0], [1, 4, 1], [1, 3, 2], [1, 2, 1, 1]):
            answers[f"{model} {shape}"] = binary(server, model, [("IN", shape, datatype, bytes(4 * prod(shape)))])
    return answers


def two(second: bytes = CONTENT) -> list[tuple[str, list[int], str, bytes]]:
    return [("INPUT0", [1, 16], "INT32", CONTENT), ("INPUT1", [1, 16], "INT32", second)]


def ask_sizes(server: ServerProcess) -> Answers:
    sizes: list[list[Any]] = [
        *([64, 64], [64, 63], [64, 65], [60, 68], [0, 128], [128, 0], [0, 0], [64, 0], [64, 2**63], [64, 2**64]),
        *([64, -1], [64, 64.0], [64, "64"], [64, None], [64, True], [64, []], [64, 2**64 - 64], [2**64 - 1, 64]),
    ]
    answers = {str(each): binary(server, "simple", two(), sizes=each) for each in sizes}
    answers["bytes after"] = binary(server, "simple", two(), tail=b"x")
    answers["cut off"] = binary(server, "simple", two(CONTENT[:-1]), sizes=[64, 64])
    return answers


def ask_lengths(server: ServerProcess) -> Answers:
    lengths = ["0", "1", "-1", "a", "", " ", "1.5", "99999", "2147483647", "2147483648", "-2147483649", "0x10", "+5"]
    lengths += ["99999999999999999999999", "1a", "1 2"]
    answers = {f"{text!r}": binary(server, "simple", two(), length=text or " ") for text in lengths}
    answers["none"] = binary(server, "simple", two(), length=None)
    answers["none, no size"] = binary(server, "simple", two(b"")[:1], sizes=[0], length=None)
    body = json.dumps(simple()).encode()
    for name, text in (
        ("exact", str(len(body))),
        ("zeros", f"00{len(body)}"),
        ("plus", f"+{len(body)}"),
        ("blanks", f"  {len(body)}  "),
        ("one less", str(len(body) - 1)),
        ("one more", str(len(body) + 1)),
        ("letters after", f"{len(body)}abc"),
        ("fraction", f"{len(body)}.0"),
    ):
        answers[f"JSON, {name}"] = without_reason(http(server, "POST", "/v2/models/simple/infer", body, {LENGTH: text}))
    for name, text in (("lower case", LENGTH.lower()), ("upper case", LENGTH.upper())):
        answers[name] = http(server, "POST", "/v2/models/simple/infer", body, {text: str(len(body))})
    return answers


def ask_forms(server: ServerProcess) -> Answers:
    """Inputs and outputs, each in JSON or binary."""
    answers = {}
    plain = {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": ROW}
    after = {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "parameters": {"binary_data_size": 64}}
    wanted = [{"name": f"OUTPUT{i}", "parameters": {"binary_data": bool(i)}} for i in (0, 1)]
    for name, document in {
        "mixed": {"inputs": [plain, after]},
        "mixed reversed": {"inputs": [after, plain]},
        "mixed outputs": {"inputs": [plain, after], "outputs": wanted},
        "mixed outputs reversed": {"inputs": [plain, after], "outputs": wanted[::-1]},
        "data and size": {"inputs": [plain, after | {"data": ROW}]},
        "id": {"id": "1", "inputs": [plain, after], "outputs": wanted},
        "twice": {"inputs": [after, after]},
        "class and binary": {
            "inputs": [plain, after],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True, "classification": 2}}],
        },
    }.items():
        head = json.dumps(document).encode()
        answers[name] = http(server, "POST", "/v2/models/simple/infer", head + CONTENT, {LENGTH: str(len(head))})
    empty = {"inputs": [{"name": "IN", "shape": [0], "datatype": "FP32", "data": []}]}
    answers["empty output"] = http(
        server, "POST", "/v2/models/id_FP32/infer", empty | {"parameters": {"binary_data_output": True}}
    )
    return answers


def ask_raw(server: ServerProcess) -> Answers:
    answers = {}
    names = (
        "raw_fixed",
        "raw_free",
        "raw_half_free",
        "raw_two_free",
        "raw_string",
        "raw_strings",
        "id_INT32",
        "simple",
    )
    for model in (*names, "id_BOOL", "id_FP16", "id_BYTES"):
        for size in (0, 1, 8, 16, 17, 24):
            body = b"\1" * size
            answers[f"{model} {size}"] = http(server, "POST", f"/v2/models/{model}/infer", body, {LENGTH: "0"})
    for headers in ({}, {LENGTH: "0"}, {"Content-Length": "0"}):
        answers[f"no body {headers}"] = http(server, "POST", "/v2/models/raw_string/infer", b"", headers)
    answers["length 00"] = http(server, "POST", "/v2/models/raw_fixed/infer", CONTENT[:16], {LENGTH: "00"})
    return answers


def compressed(
    server: ServerProcess, body: bytes, headers: dict[str, str], path: str = "/v2/models/id_INT32/infer"
) -> Any:
    """The answer, inflated, with the headers that say how it was compressed."""
    status, answered, content = server.request("POST", path, body, headers)
    encoding = answered.get("Content-Encoding")
    if encoding is not None:
        content = gzip.decompress(content) if encoding == "gzip" else zlib.decompress(content)
    head = int(answered.get(LENGTH) or len(content))
    document = json.loads(content[:head])
    if "error" in document:
        document = {"error": document["error"]}
    answer = {"status": status, "type": answered.get("Content-Type"), "encoding": encoding, "body": document}
    if answered.get("Accept-Encoding"):
        answer["accepts"] = answered["Accept-Encoding"]
    if head < len(content):
        answer["binary"] = base64.b64encode(content[head:]).decode()
    return without_reason(answer)


def ask_encodings(server: ServerProcess) -> Answers:
    body = json.dumps(one()).encode()
    raw = zlib.compressobj(wbits=-15)
    bodies = {
        "plain": body,
        "gzip": gzip.compress(body, mtime=0),
        "deflate": zlib.compress(body),
        "raw deflate": raw.compress(body) + raw.flush(),
        "cut off": gzip.compress(body, mtime=0)[:-10],
        "bytes after": gzip.compress(body, mtime=0) + b"x",
        "two members": gzip.compress(body[:50], mtime=0) + gzip.compress(body[50:], mtime=0),
        "none": b"",
    }
    answers = {}
    for encoding in ("gzip", "deflate"):
        for name, content in bodies.items():
            answers[f"{name} as {encoding}"] = compressed(server, content, {"Content-Encoding": encoding})
    for encoding in ("identity", "br", "GZIP", "x-gzip", "gzip, deflate", "gzip ", "none"):
        answers[f"gzip as {encoding!r}"] = compressed(server, bodies["gzip"], {"Content-Encoding": encoding})
    answers["plain as identity"] = compressed(server, body, {"Content-Encoding": "identity"})
    head = json.dumps(
        {
            "inputs": [
                {"name": name, "shape": [1, 16], "datatype": "INT32", "parameters": {"binary_data_size": 64}}
                for name in ("INPUT0", "INPUT1")
            ]
        }
    ).encode()
    for length in (len(head), len(head) + 1, 0, 10000):
        answers[f"binary {length - len(head)}"] = compressed(
            server,
            gzip.compress(head + CONTENT * 2, mtime=0),
            {"Content-Encoding": "gzip", LENGTH: str(length)},
            "/v2/models/simple/infer",
        )
    return answers


def ask_accepted_encodings(server: ServerProcess) -> Answers:
    accepted = ["gzip", "deflate", "identity", "", "*", "br", "gzip, deflate", "deflate, gzip", "gzip;q=0"]
    accepted += ["gzip;q=0.5, deflate;q=0.8", "gzip;q=0.5, identity", "identity;q=0.5, gzip;q=0.5", "GZIP", "gzip ;q=1"]
    accepted += ["gzip;q=1.0,br;q=0.9", "gzip;q=nonsense", "gzip;Q=0.5", "gzip; q=0.5, deflate; q=0.6", "br, gzip"]
    accepted += [
        "identity;q=0",
        "*;q=0",
        "gzip;q=-1",
        "deflate;q=0, gzip;q=0",
        ",",
        "gzip,,deflate",
    ]
    body = json.dumps(one()).encode()
    answers = {each: compressed(server, body, {"Accept-Encoding": each}) for each in accepted}
    forced = json.dumps(one(parameters={"binary_data_output": True})).encode()
    for each in ("gzip", "deflate"):
        answers[f"binary {each}"] = compressed(server, forced, {"Accept-Encoding": each})
        answers[f"error {each}"] = compressed(server, b"{}", {"Accept-Encoding": each})
        answers[f"metadata {each}"] = http(server, "GET", "/v2/models/simple", headers={"Accept-Encoding": each})
    return answers


def chunked(server: ServerProcess, chunks: list[bytes], headers: dict[str, str], model: str = "simple") -> Any:
    connection = HTTPConnection(HOST, server.http_port, timeout=60)
    try:
        connection.request(
            "POST",
            f"/v2/models/{model}/infer",
            iter(chunks),
            {"Transfer-Encoding": "chunked"} | headers,
            encode_chunked=True,
        )
        response = connection.getresponse()
        content = response.read()
        head = int(response.headers.get(LENGTH) or len(content))
        answer = {
            "status": response.status,
            "type": response.headers["Content-Type"],
            "body": json.loads(content[:head]),
        }
        if "error" in answer["body"]:
            answer["body"].pop("hint", None)
        return without_reason(answer) | (
            {"binary": base64.b64encode(content[head:]).decode()} if head < len(content) else {}
        )
    finally:
        connection.close()


def ask_chunks(server: ServerProcess) -> Answers:
    body = json.dumps(simple()).encode()
    head = json.dumps(
        {
            "inputs": [
                {"name": name, "shape": [1, 16], "datatype": "INT32", "parameters": {"binary_data_size": 64}}
                for name in ("INPUT0", "INPUT1")
            ]
        }
    ).encode()
    length = {LENGTH: str(len(head))}
    return {
        "one": chunked(server, [body], {}),
        "many": chunked(server, [body[i : i + 7] for i in range(0, len(body), 7)], {}),
        "binary": chunked(server, [head, CONTENT, CONTENT], length),
        "binary across": chunked(server, [head + CONTENT[:3], CONTENT[3:] + CONTENT[:9], CONTENT[9:]], length),
        "none": chunked(server, [], {}),
        "none, raw": chunked(server, [], {LENGTH: "0"}, "raw_string"),
        "raw": chunked(server, [CONTENT[:5], CONTENT[5:16]], {LENGTH: "0"}, "raw_fixed"),
        "length too large": chunked(server, [body], {LENGTH: str(len(body) + 1)}),
        "compressed": chunked(server, [gzip.compress(body)], {"Content-Encoding": "gzip"}),
    }
