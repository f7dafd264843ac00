"""Bad requests for inference: shapes that announce much, and bodies over the limits.

Each is refused with its reason, and the next good request is answered.
Source: docs/spec/http.md sections 4, 5 and 7.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.contract.servers.processes import memory_bound
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import (
    HEADER_LENGTH,
    IDENTITY,
    assert_accepted,
    assert_refused,
    assert_still_serves,
    binary_body,
    good_body,
    link_models,
    tensor,
)

pytestmark = pytest.mark.slow

GOOD = good_body()
LIMIT = 4096
INCREASE = "Use --http-max-input-size to increase the limit."


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("bad_input")
    repository = link_models(folder / "models", "simple", "identity_fp32", "str_id")
    with ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0") as running:
        yield running
        assert "Traceback" not in running.log_text()


# --- malformed JSON


# --- shapes


NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
MAX = 2**63 - 1
EXCEEDS = "causes total element count to exceed maximum size of 9223372036854775807"
OVERFLOW = "byte size overflow for input 'INPUT0': element count "


@pytest.mark.parametrize(
    ("shape", "text_json", "text_binary"),
    [
        ([1, -1], NOT_UNSIGNED, NOT_UNSIGNED),
        ([1, 2**40], f"JSON input 'INPUT0' has a byte_size ({2**42} bytes) that exceeds", "input byte size mismatch"),
        ([1, MAX], OVERFLOW, OVERFLOW),
        ([1, 2**61], OVERFLOW, OVERFLOW),
        ([1, 2**63], EXCEEDS, EXCEEDS),
        ([64, 2**57], EXCEEDS, EXCEEDS),
        ([1, 2**64], NOT_UNSIGNED, NOT_UNSIGNED),
        ([2**40, 2**40], "inference request batch-size must be <= 64", "inference request batch-size must be <= 64"),
        ([0, 1], "input byte size mismatch for input 'INPUT0' for model 'identity_fp32'. Expected 4, got 0", ""),
        ([1] * 64, "Failed to parse 'data' field", "unexpected shape for input 'INPUT0' for model 'identity_fp32'"),
        ([2**62] * 200_000, "200000 dimensions are more than", "200000 dimensions are more than"),
        ([], "has no shape but model requires batch dimension", "has no shape but model requires batch dimension"),
        ([1], "Failed to parse 'data' field", "unexpected shape for input 'INPUT0' for model 'identity_fp32'"),
    ],
    ids=str,
)
def test_shape_is_checked_before_memory_is_allocated(
    server: ServerProcess, shape: list[int], text_json: str, text_binary: str
) -> None:
    with memory_bound(server, 64):
        assert_refused(server, text_json, tensor("[]", shape), path=IDENTITY)
        document = json.loads(tensor("[]", shape))
        del document["inputs"][0]["data"]
        document["inputs"][0]["parameters"] = {"binary_data_size": 4}
        text = json.dumps(document).encode()
        headers = {HEADER_LENGTH: str(len(text))}
        if text_binary:
            assert_refused(server, text_binary, text + b"1234", headers, path=IDENTITY)
        else:  # a batch of 0 counts as 1; sent twice, because the request's JSON is cached
            for _ in range(2):
                assert b'"shape":[1,1]' in assert_accepted(server, text + b"1234", headers, path=IDENTITY)


# --- binary tensors of a wrong size


# --- limits


@pytest.fixture(scope="module")
def limited(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose limit of input is 4096 bytes."""
    folder = tmp_path_factory.mktemp("limited")
    repository = link_models(folder / "models", "simple", "identity_fp32", "str_id")
    options = (f"--http-max-input-size={LIMIT}", "--shutdown-grace-secs=0")
    with ServerProcess(repository, folder / "log", *options) as running:
        yield running
        assert "Traceback" not in running.log_text()


def padded(body: bytes, size: int) -> bytes:
    return body + b" " * (size - len(body))


def test_json_body_has_a_limit(limited: ServerProcess) -> None:
    assert_accepted(limited, padded(GOOD, LIMIT))
    generate = padded(b'{"INPUT0":[%b],"INPUT1":[%b]}' % ((b",".join([b"1"] * 16),) * 2), LIMIT)
    assert limited.request("POST", "/v2/models/simple/generate", generate)[0] == 200
    text = f"request JSON size of {LIMIT + 1} bytes exceeds the maximum allowed input size of {LIMIT} bytes. {INCREASE}"
    assert_refused(limited, text, padded(GOOD, LIMIT + 1), status=413)
    assert_refused(limited, text, generate + b" ", path="/v2/models/simple/generate", status=413)
    chunked = {"Transfer-Encoding": "chunked"}
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (LIMIT + 1, padded(GOOD, LIMIT + 1))
    more = f"the body of more than {LIMIT} bytes exceeds the maximum allowed input size of {LIMIT} bytes. {INCREASE}"
    assert_refused(limited, more, body, chunked, status=413)


def test_json_before_binary_tensors_has_a_limit(limited: ServerProcess) -> None:
    body, headers = binary_body()
    split = int(headers[HEADER_LENGTH])
    text = f"request JSON size of {LIMIT + 1} bytes exceeds the maximum allowed input size of {LIMIT} bytes. {INCREASE}"
    for size in (LIMIT, LIMIT + 1):
        whole = padded(body[:split], size) + body[split:]
        if size == LIMIT:
            assert_accepted(limited, whole, {HEADER_LENGTH: str(size)})
        else:
            assert_refused(limited, text, whole, {HEADER_LENGTH: str(size)}, status=413)


def test_raw_body_has_a_limit(limited: ServerProcess) -> None:
    assert_accepted(limited, bytes(LIMIT), {HEADER_LENGTH: "0"}, path=IDENTITY)
    text = f"Raw input has a byte_size ({LIMIT + 4} bytes) that exceeds the maximum allowed value of {LIMIT} bytes. "
    assert_refused(limited, text + INCREASE, bytes(LIMIT + 4), {HEADER_LENGTH: "0"}, path=IDENTITY, status=413)
    # By its head alone, since it does not arrive with it.
    whole = 10 * LIMIT
    text = f"Raw input has a byte_size ({whole} bytes) that exceeds the maximum allowed value of {LIMIT} bytes. "
    assert_refused(limited, text + INCREASE, bytes(whole), {HEADER_LENGTH: "0"}, path=IDENTITY, status=413)


def test_binary_tensors_have_no_limit(limited: ServerProcess) -> None:
    content = bytes(1 << 20)
    entry = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1 << 18], "parameters": {"binary_data_size": 1 << 20}}
    header = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    answer = assert_accepted(limited, header + content, {HEADER_LENGTH: str(len(header))}, path=IDENTITY)
    assert answer.endswith(content)
    assert_still_serves(limited)
