"""Bad bodies: binary tensors, compression, limits and paths.

Each is refused with its reason, and the next good request is answered.
Source: docs/spec/http.md sections 2, 6, 7 and 12.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.servers.processes import memory_bound
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import (
    HEADER_LENGTH,
    IDENTITY,
    PATH,
    STRINGS,
    assert_accepted,
    assert_refused,
    assert_still_serves,
    binary_body,
    good_body,
    link_models,
    tensor,
)

pytestmark = pytest.mark.slow

LIMIT = 4096
INCREASE = "Use --http-max-input-size to increase the limit."
GOOD = good_body()
SYNTAX = "failed to parse the request JSON buffer: "


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("bad_body")
    repository = link_models(folder / "models", "simple", "identity_fp32", "str_id")
    with ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0") as running:
        yield running
        assert "Traceback" not in running.log_text()


@pytest.fixture(scope="module")
def limited(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose limit of input is 4096 bytes."""
    folder = tmp_path_factory.mktemp("limited")
    repository = link_models(folder / "models", "simple", "identity_fp32", "str_id")
    options = (f"--http-max-input-size={LIMIT}", "--shutdown-grace-secs=0")
    with ServerProcess(repository, folder / "log", *options) as running:
        yield running
        assert "Traceback" not in running.log_text()


# --- binary tensors of a wrong size


@pytest.mark.parametrize(
    ("sizes", "tail", "text"),
    [
        ((60, 64), bytes(128), "unexpected additional input data for model 'simple'"),
        ((64, 64), bytes(129), "unexpected additional input data for model 'simple'"),
        ((0, 0), bytes(1), "unexpected additional input data for model 'simple'"),
        ((64, 64), bytes(127), "unexpected size for input 'INPUT1', expecting 1 additional bytes for model 'simple'"),
        ((64, 64), b"", "unexpected size for input 'INPUT0', expecting 64 additional bytes for model 'simple'"),
        ((2**62, 64), bytes(128), "unexpected size for input 'INPUT0', expecting 4611686018427387776 additional"),
        ((2**64, 64), bytes(128), "Unable to parse 'binary_data_size': "),
        ((-1, 129), bytes(128), "Unable to parse 'binary_data_size': "),
        ((63, 65), bytes(128), "input byte size mismatch for input 'INPUT1' for model 'simple'. Expected 64, got 65"),
        ((128, 0), bytes(128), "input byte size mismatch for input 'INPUT1' for model 'simple'. Expected 64, got 0"),
    ],
)
def test_binary_sizes_must_agree(server: ServerProcess, sizes: tuple[Any, Any], tail: bytes, text: str) -> None:
    body, headers = binary_body(sizes, tail)
    with memory_bound(server, 64):
        for _ in range(2):
            assert_refused(server, text, body, headers)


UNPARSABLE = "Unable to parse Inference-Header-Content-Length, got: {}"
OUT_OF_RANGE = (
    "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: {}"
)
NOT_IN_BODY = "inference header size should be in range (0, 338), got: {}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(value, UNPARSABLE) for value in ("abc", "", "5.0", "0x10", "1e3", "5 5", "5,5", "--5", "5\xb2")],
        *[(value, OUT_OF_RANGE) for value in ("2147483648", "-2147483649", "9" * 5000)],
        *[(value, NOT_IN_BODY) for value in ("-1", "339", "2147483647")],
        ("0", "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'simple' model"),
        ("10", SYNTAX),
        ("211", SYNTAX),
    ],
)
def test_bad_header_length_is_refused(server: ServerProcess, value: str, text: str) -> None:
    body, _ = binary_body()
    body += bytes(338 - len(body))
    assert_refused(server, text.format(value), body, {HEADER_LENGTH: value})


def test_binary_tensors_need_the_header(server: ServerProcess) -> None:
    text = "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing"
    assert_refused(server, text, binary_body()[0])
    assert_refused(server, text, binary_body(tail=b"")[0])


INDICATOR = "incomplete string length indicator for inference input 'IN' for model 'str_id', expecting 4 bytes but only"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\1\0\0\0a", "expected 2 string elements for inference input 'IN' for model 'str_id', got 1"),
        (b"", "expected 2 string elements for inference input 'IN' for model 'str_id', got 0"),
        (b"\0\0\0\0" * 3, "unexpected number of string elements 3 for inference input 'IN' for model 'str_id'"),
        (b"\1", f"{INDICATOR} 1 bytes available"),
        (b"\1\0\0\0a\1\0\0", f"{INDICATOR} 3 bytes available"),
        (b"\1\0\0\0a\5\0\0\0ab", "expecting string of length 5 but only 2 bytes available"),
        (b"\0" * 4 + b"\xff" * 8, "expecting string of length 4294967295 but only 4 bytes available"),
        (b"\xff" * 8, "expected 2 string elements for inference input 'IN' for model"),
        (b"\0" * 9, f"{INDICATOR} 1 bytes available"),
        (b"\0" * 12, "unexpected number of string elements 3 for inference input 'IN' for model"),
    ],
)
def test_string_tensor_must_be_whole(server: ServerProcess, content: bytes, text: str) -> None:
    entry = {"name": "IN", "datatype": "BYTES", "shape": [1, 2], "parameters": {"binary_data_size": len(content)}}
    header = json.dumps({"inputs": [entry]}).encode()
    with memory_bound(server, 64):
        assert_refused(server, text, header + content, {HEADER_LENGTH: str(len(header))}, path=STRINGS)


# --- bodies without content, compressed bodies


def test_empty_body_is_a_raw_request(server: ServerProcess) -> None:
    text = "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'simple' model configuration"
    assert_refused(server, text, b"")
    assert_refused(server, "the model must have input shape [1]", b"", path=STRINGS)
    assert b'"shape":[1,0]' in assert_accepted(server, b"", path=IDENTITY)
    assert_refused(server, "input byte size mismatch for input 'INPUT0'", b"123", {HEADER_LENGTH: "0"}, path=IDENTITY)


@pytest.mark.parametrize("encoding", ["br", "zstd", "x-gzip", "gzip, deflate", "gzip,gzip", "\xff"])
def test_unknown_encoding_is_refused_with_the_known_ones(server: ServerProcess, encoding: str) -> None:
    status, headers, answer = server.request("POST", PATH, GOOD, {"Content-Encoding": encoding})
    assert (status, json.loads(answer)) == (501, {"error": "Unsupported compression type"})
    assert (headers["Accept-Encoding"], headers["Content-Type"]) == ("gzip, deflate", "text/plain")
    assert_still_serves(server)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "nothing to be decompressed"),
        (GOOD, "failed to decompress the request body"),
        (gzip.compress(GOOD)[:-4], "failed to decompress the request body: it ends before the compressed data does"),
        (gzip.compress(GOOD)[:12], "failed to decompress the request body: it ends before the compressed data does"),
        (gzip.compress(GOOD) + b"x", "failed to decompress the request body: there is more after the compressed data"),
        (gzip.compress(GOOD)[:-8] + bytes(8), "failed to decompress the request body"),
        (zlib.compress(GOOD, wbits=-15), "failed to decompress the request body"),
        (gzip.compress(b"{"), SYNTAX),
        (gzip.compress(b""), "Raw request must only have 1 input"),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_broken_compression_is_refused(server: ServerProcess, encoding: str, body: bytes, text: str) -> None:
    assert_refused(server, text, body, {"Content-Encoding": encoding})


def test_decompression_bomb_is_refused_within_the_limit(server: ServerProcess) -> None:
    bomb = gzip_of_zeros(1 << 30)
    text = f"Decompressed data size exceeds the maximum allowed value of 67108864 bytes. {INCREASE}"
    with memory_bound(server, 256):
        for path in (PATH, IDENTITY):
            assert_refused(server, text, bomb, {"Content-Encoding": "gzip"}, path=path)


def gzip_of_zeros(size: int) -> bytes:
    """A gzip stream of `size` zero bytes, made of repeated compressed blocks."""
    stream = zlib.compressobj(9, wbits=-15)
    piece = bytes(1 << 20)
    head = stream.compress(piece) + stream.flush(zlib.Z_FULL_FLUSH)
    again = stream.compress(piece) + stream.flush(zlib.Z_FULL_FLUSH)
    check = 0
    for _ in range(size >> 20):
        check = zlib.crc32(piece, check)
    blocks = head + again * ((size >> 20) - 1) + stream.flush()
    return gzip.compress(b"")[:10] + blocks + struct.pack("<II", check, size & 0xFFFFFFFF)


def test_bomb_is_a_valid_stream() -> None:
    assert gzip.decompress(gzip_of_zeros(3 << 20)) == bytes(3 << 20)


# --- paths


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/v2/models/a%00b/infer", 404, "Request for unknown model: 'a%00b' is not found"),
        ("/v2/models/%ff%fe/infer", 404, "Request for unknown model: '%ff%fe' is not found"),
        ("/v2/models/..%2f..%2fetc/infer", 404, "Request for unknown model: '..%2f..%2fetc' is not found"),
        ("/v2/models/../infer", 404, "Request for unknown model: '..' is not found"),
        ("/v2/models/../../etc/passwd", 404, "Not Found"),
        ("/v2/models//infer", 404, "Not Found"),
        ("//v2/models/simple/infer", 404, "Not Found"),
        ("/v2/models/simple/infer/", 404, "Not Found"),
        ("/v2/models/simple/versions/-1/infer", 404, "Not Found"),
        ("/v2/models/simple/versions/1x/infer", 404, "Not Found"),
        ("/v2/models/simple/versions/0/infer", 400, "invalid model version specified '0' , version should be"),
        ("/v2/models/simple/versions/" + "9" * 5000 + "/infer", 400, "failed to get model version from specified"),
        ("/v2/models/simple/versions/7/infer", 404, "Request for unknown model: 'simple' version 7 is not found"),
        ("/v2/models/" + "a" * 4000 + "/infer", 404, "Request for unknown model: 'aaaa"),
    ],
    ids=range(14),
)
def test_odd_path_is_refused(server: ServerProcess, path: str, status: int, text: str) -> None:
    assert_refused(server, text, GOOD, path=path, status=status)


# --- limits


def padded(body: bytes, size: int) -> bytes:
    return body + b" " * (size - len(body))


def test_json_body_has_a_limit(limited: ServerProcess) -> None:
    assert_accepted(limited, padded(GOOD, LIMIT))
    text = f"request JSON size of {LIMIT + 1} bytes exceeds the maximum allowed input size of {LIMIT} bytes. {INCREASE}"
    assert_refused(limited, text, padded(GOOD, LIMIT + 1))
    chunked = {"Transfer-Encoding": "chunked"}
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (LIMIT + 1, padded(GOOD, LIMIT + 1))
    assert_refused(limited, text, body, chunked)


@pytest.mark.parametrize("action", ["generate", "generate_stream"])
def test_generate_has_the_limit_of_json(limited: ServerProcess, action: str) -> None:
    path = f"/v2/models/simple/{action}"
    whole = padded(b'{"INPUT0":[%b],"INPUT1":[%b]}' % ((b",".join([b"1"] * 16),) * 2), LIMIT)
    assert limited.request("POST", path, whole)[0] == 200
    text = f"request JSON size of {LIMIT + 1} bytes exceeds the maximum allowed input size of {LIMIT} bytes. {INCREASE}"
    assert_refused(limited, text, whole + b" ", path=path)


def test_json_before_binary_tensors_has_a_limit(limited: ServerProcess) -> None:
    body, headers = binary_body()
    split = int(headers[HEADER_LENGTH])
    text = f"request JSON size of {LIMIT + 1} bytes exceeds the maximum allowed input size of {LIMIT} bytes. {INCREASE}"
    for size in (LIMIT, LIMIT + 1):
        whole = padded(body[:split], size) + body[split:]
        if size == LIMIT:
            assert_accepted(limited, whole, {HEADER_LENGTH: str(size)})
        else:
            assert_refused(limited, text, whole, {HEADER_LENGTH: str(size)})


def test_raw_body_has_a_limit(limited: ServerProcess) -> None:
    assert_accepted(limited, bytes(LIMIT), {HEADER_LENGTH: "0"}, path=IDENTITY)
    text = f"Raw input has a byte_size ({LIMIT + 4} bytes) that exceeds the maximum allowed value of {LIMIT} bytes. "
    assert_refused(limited, text + INCREASE, bytes(LIMIT + 4), {HEADER_LENGTH: "0"}, path=IDENTITY)


def test_tensor_in_json_has_a_limit(limited: ServerProcess) -> None:
    count = LIMIT // 4
    content = "[" + ",".join("1" * count) + "]"
    assert_accepted(limited, tensor(content, [1, count]), path=IDENTITY)
    text = f"JSON input 'INPUT0' has a byte_size ({LIMIT + 4} bytes) that exceeds the maximum allowed value of {LIMIT} "
    assert_refused(limited, text, tensor(content, [1, count + 1]), path=IDENTITY)


def test_decompressed_body_has_a_limit(limited: ServerProcess) -> None:
    for compress, encoding in ((gzip.compress, "gzip"), (zlib.compress, "deflate")):
        headers = {"Content-Encoding": encoding}
        assert_accepted(limited, compress(padded(GOOD, LIMIT)), headers)
        text = f"Decompressed data size exceeds the maximum allowed value of {LIMIT} bytes. {INCREASE}"
        assert_refused(limited, text, compress(padded(GOOD, LIMIT + 1)), headers)


def test_binary_tensors_have_no_limit(limited: ServerProcess) -> None:
    content = bytes(1 << 20)
    entry = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1 << 18], "parameters": {"binary_data_size": 1 << 20}}
    header = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    answer = assert_accepted(limited, header + content, {HEADER_LENGTH: str(len(header))}, path=IDENTITY)
    assert answer.endswith(content)
    assert_still_serves(limited)
