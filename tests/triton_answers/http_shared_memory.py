"""System shared memory over HTTP: how regions are registered and found, and tensors in them. No CUDA."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers, http
from tests.triton_answers.http_binary import CONTENT, LENGTH, string
from tests.triton_answers.inference import (
    NEWER,
    REFUSED,
    ROW,
    refusal,
    without_reason,
    write_golden_models,
    write_identities,
)

OPTIONS = ()

KEY = "KEY"
SIZE = 8192

LATE = "an input in shared memory is read when it is executed"
CANNOT = "cannot register shared memory region 'r'"
UNKNOWN = "[request id: <id_unknown>] "
OF_IN = "for inference input 'IN' for model 'id_BYTES'"
RESERVED = "triton_python_backend_shm_region_"
WRAPS = refusal(
    f"Integer overflow detected: byte_size ({2**64 - 1}) + offset (64) exceeds maximum value ({2**64 - 1}) "
    "for region 'r'"
)
NO_BYTES = refusal(f"{UNKNOWN}input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got 0")
NO_SPACE = {
    "status": 500,
    "type": "text/plain",
    "body": {
        "error": "shared memory size specified with the request for output 'OUTPUT0' (0 bytes) should be at least "
        "64 bytes to hold the results"
    },
}


def late(error: str) -> tuple[str, Any]:
    return LATE, refusal(f"{UNKNOWN}{error}") | {"type": "text/plain"}


def of_none(**output: Any) -> Answers:
    outputs = [{"name": "OUT", "datatype": "BYTES", "shape": [0], **output}]
    body = {"model_name": "id_BYTES", "model_version": "1", "outputs": outputs}
    return {"status": 200, "type": "application/json", "body": body}


OTHERWISE: dict[str, tuple[str, Any]] = {
    **{
        f"registrations: {name}": (
            NEWER,
            refusal(f"{CANNOT} - invalid shm key '{key}'"),
        )
        for name, key in (("empty key", ""), ("only a slash", "/"), ("two slashes", "//"))
    },
    **{
        f"registrations: {name}": (
            NEWER,
            refusal(f"{CANNOT} with key '{key}' as the key contains the reserved prefix '{RESERVED}'"),
        )
        for name, key in (("reserved", f"{RESERVED}1"), ("reserved after slashes", f"//{RESERVED}1"))
    },
    **{
        f"bodies: {text}": (REFUSED, refusal("attempt to access JSON non-object as object"))
        for text in ("[]", "null", "1")
    },
    "inputs: wraps": (NEWER, WRAPS),
    "inputs: size of 0": (NEWER, NO_BYTES),
    "inputs: no size": (NEWER, NO_BYTES),
    "inputs: strings [0] 0": (NEWER, of_none(data=[])),
    **{
        f"inputs: strings {question}": late(error)
        for question, error in (
            (
                "[2] 16",
                f"unexpected number of string elements 3 {OF_IN}, expecting 2",
            ),
            ("[4] 16", f"expected 4 string elements {OF_IN}, got 3"),
            (
                "[0] 16",
                f"unexpected number of string elements 1 {OF_IN}, expecting 0",
            ),
            (
                "[3] 17",
                f"incomplete string length indicator {OF_IN}, expecting 4 bytes "
                "but only 1 bytes available. Please make sure the string length indicator is in one buffer.",
            ),
        )
    },
    "outputs: size of 0": (NEWER, NO_SPACE),
    "outputs: no size": (NEWER, NO_SPACE),
    "outputs: wraps": (NEWER, WRAPS),
    "outputs: strings [] 0": (NEWER, of_none() | {"written": "00" * 16}),
}


def write_models(folder: Path) -> None:
    write_golden_models(folder, "simple", "str_id")
    write_identities(folder, ("BYTES", "INT32", "FP16", "BOOL"))


@contextmanager
def memory() -> Iterator[SharedMemory]:
    made = SharedMemory(f"answers_{uuid.uuid4().hex}", create=True, size=SIZE)
    try:
        yield made
    finally:
        made.close()
        made.unlink()


class Regions:
    """Calls of a server about an object and a second one; answers name them KEY."""

    def __init__(self, server: ServerProcess, shared: SharedMemory, second: SharedMemory) -> None:
        self.server = server
        self.shared = shared
        self.second = second

    def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = without_reason(http(self.server, method, f"/v2/{path}", body))
        text = json.dumps(answer).replace(self.shared.name, KEY).replace(self.second.name, KEY)
        return json.loads(text)

    def register(self, region: str, **more: Any) -> Any:
        document = {"key": f"/{self.shared.name}", "byte_size": SIZE} | more
        return self.call("POST", f"systemsharedmemory/region/{region}/register", document)

    def register_second(self, region: str, **more: Any) -> Any:
        return self.register(region, key=f"/{self.second.name}", **more)

    def status(self, region: str = "") -> Any:
        return self.call("GET", f"systemsharedmemory{f'/region/{region}' if region else ''}/status")

    def unregister(self, region: str = "") -> Any:
        return self.call("POST", f"systemsharedmemory{f'/region/{region}' if region else ''}/unregister", b"")


@contextmanager
def regions(server: ServerProcess) -> Iterator[Regions]:
    with memory() as shared, memory() as second:
        made = Regions(server, shared, second)
        try:
            yield made
        finally:
            made.unregister()


def ask_registrations(server: ServerProcess) -> Answers:
    answers = {}
    with regions(server) as made:
        name = made.shared.name
        documents: dict[str, Any] = {
            "valid": {},
            "key without slash": {"key": name},
            "key with two slashes": {"key": f"//{name}"},
            "unknown key": {"key": "/answers_none"},
            "empty key": {"key": ""},
            "only a slash": {"key": "/"},
            "two slashes": {"key": "//"},
            "inner slash": {"key": "/a/b"},
            "dot": {"key": "/."},
            "reserved": {"key": "triton_python_backend_shm_region_1"},
            "reserved after slashes": {"key": "//triton_python_backend_shm_region_1"},
            "long key": {"key": "/" + "a" * 300},
            "offset": {"offset": 4096, "byte_size": 4096},
            "offset 0": {"offset": 0},
            "size of 1": {"byte_size": 1},
            "size of 0": {"byte_size": 0},
            "misaligned": {"offset": 64, "byte_size": 64},
            "too large": {"byte_size": SIZE + 1},
            "beyond": {"offset": SIZE, "byte_size": 1},
            "far beyond": {"offset": SIZE + 4096, "byte_size": 1},
            "end": {"offset": SIZE, "byte_size": 0},
            "offset and size": {"offset": 4096, "byte_size": SIZE},
            "huge": {"byte_size": 2**63},
            "largest": {"byte_size": 2**64 - 1},
            "unknown member": {"other": 1},
        }
        for field in ("key", "offset", "byte_size"):
            for value in (None, -1, 1.5, 2**64, "1", True, [], {}):
                documents[f"{field} {json.dumps(value)}"] = {field: value}
        for name, document in documents.items():
            answers[name] = made.register("r", **document)
            answers[f"{name}, status"] = made.status()
            made.unregister()
    return answers


def ask_bodies(server: ServerProcess) -> Answers:
    answers = {}
    with regions(server) as made:
        key = f'"key":"/{made.shared.name}"'
        for text in ("", " ", "{}", "[]", "null", "1", "nonsense", "{", f"{{{key}}}", '{"byte_size":64}', "{}x"):
            answers[text.replace(made.shared.name, KEY)] = made.call(
                "POST", "systemsharedmemory/region/r/register", text.encode()
            )
        for name in ("a%20b", "%20", "a%2Fb", "a" * 300, ".", "status", "region", "register"):
            answers[f"name {name[:20]}"] = made.register(name)
            answers[f"name {name[:20]}, status"] = made.status(name)
            made.unregister(name)
        for path in (
            "systemsharedmemory/register",
            "systemsharedmemory/region//register",
            "systemsharedmemory/region/r",
        ):
            answers[path] = made.call("POST", path, {"key": f"/{made.shared.name}", "byte_size": 64})
        for action in ("status", "register", "unregister", "other"):
            for method in ("GET", "POST"):
                for kind in ("system", "cuda"):
                    for region in ("", "/region/none"):
                        path = f"{kind}sharedmemory{region}/{action}"
                        answers[f"{method} {path}"] = made.call(method, path, {} if method == "POST" else None)
    return answers


def ask_names(server: ServerProcess) -> Answers:
    """What is there after each of a series of calls."""
    answers = {}
    with regions(server) as made:
        steps = {
            "register b": lambda: made.register("b", byte_size=64),
            "register a": lambda: made.register_second("a", byte_size=4096, offset=4096),
            "register a again": lambda: made.register_second("a", byte_size=64),
            "status of a": lambda: made.status("a"),
            "status of none": lambda: made.status("none"),
            "status of a as CUDA": lambda: made.call("GET", "cudasharedmemory/region/a/status"),
            "unregister a as CUDA": lambda: made.call("POST", "cudasharedmemory/region/a/unregister", b""),
            "unregister all of CUDA": lambda: made.call("POST", "cudasharedmemory/unregister", b""),
            "unregister none": lambda: made.unregister("none"),
            "unregister a": lambda: made.unregister("a"),
            "unregister a again": lambda: made.unregister("a"),
            "register a with another size": lambda: made.register_second("a", byte_size=128),
            "unregister all": lambda: made.unregister(),
            "unregister all again": lambda: made.unregister(),
            "register CUDA without": lambda: made.call("POST", "cudasharedmemory/region/c/register", {}),
        }
        for name, call in steps.items():
            answers[name] = call()
            answers[f"{name}, then"] = made.status()
    return answers


def place(region: Any = "r", size: Any = 64, offset: Any = None, **more: Any) -> dict[str, Any]:
    parameters = {"shared_memory_region": region, "shared_memory_byte_size": size} | more
    return parameters if offset is None else parameters | {"shared_memory_offset": offset}


def wrong_places() -> dict[str, Any]:
    return {
        f"{field} {json.dumps(value)}": place() | {f"shared_memory_{field}": value}
        for field in ("region", "byte_size", "offset")
        for value in (None, 1, -1, 1.5, "1", True, [], {})
    }


def ask_inputs(server: ServerProcess) -> Answers:
    answers = {}
    with regions(server) as made:
        made.shared.buf[:64] = CONTENT
        made.second.buf[:64] = CONTENT[::-1]
        made.register("r")
        made.register_second("second", byte_size=4096)
        places: dict[str, Any] = {
            "whole": place(),
            "second": place("second"),
            "offset": place(offset=4096),
            "offset 1": place(offset=1),
            "offset of second": place("second", offset=4),
            "at the end": place(offset=SIZE - 64),
            "one beyond": place(offset=SIZE - 63),
            "offset at size": place(offset=SIZE),
            "offset beyond": place(offset=SIZE + 1),
            "wraps": place(size=2**64 - 1, offset=64),
            "largest offset": place(offset=2**64 - 1),
            "too small": place(size=63),
            "too large": place(size=65),
            "size of 0": place(size=0),
            "no size": {"shared_memory_region": "r"},
            "unknown": place("none"),
            "empty name": place(""),
            "no region": {"shared_memory_byte_size": 64},
            "only offset": {"shared_memory_offset": 0},
            "binary size, too": place(binary_data_size=64),
            "unknown parameter": place(other=1),
        }
        places |= wrong_places()
        second = {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "data": ROW}
        for name, parameters in places.items():
            first = {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "parameters": parameters}
            answers[name] = made.call("POST", "models/simple/infer", {"inputs": [first, second]})
            if name in ("whole", "unknown", "too small"):
                answers[f"{name}, with data"] = made.call(
                    "POST", "models/simple/infer", {"inputs": [first | {"data": ROW}, second]}
                )
                answers[f"{name}, empty"] = made.call(
                    "POST", "models/id_INT32/infer", {"inputs": [first | {"name": "IN", "shape": [0]}]}
                )
        made.shared.buf[:16] = string(b"abc", b"", b"d")
        for shape, size in (([3], 16), ([2], 16), ([4], 16), ([3], 15), ([3], 17), ([0], 0), ([0], 16)):
            item = {"name": "IN", "shape": shape, "datatype": "BYTES", "parameters": place(size=size)}
            answers[f"strings {shape} {size}"] = made.call("POST", "models/id_BYTES/infer", {"inputs": [item]})
    return answers


def ask_outputs(server: ServerProcess) -> Answers:
    answers = {}
    with regions(server) as made:
        made.register("r")
        made.register_second("second", byte_size=4096)
        places: dict[str, Any] = {
            "whole": place(),
            "second": place("second"),
            "offset": place(offset=128),
            "larger": place(size=100),
            "too small": place(size=63),
            "size of 0": place(size=0),
            "no size": {"shared_memory_region": "r"},
            "at the end": place(offset=SIZE - 64),
            "one beyond": place(offset=SIZE - 63),
            "offset at size": place(offset=SIZE),
            "wraps": place(size=2**64 - 1, offset=64),
            "unknown": place("none"),
            "empty name": place(""),
            "binary": place(binary_data=True),
            "not binary": place(binary_data=False),
            "binary of 1": place(binary_data=1),
            "classes": place(classification=1),
            "no classes": place(classification=0),
            "classes of a text": place(classification="1"),
            "only offset": {"shared_memory_offset": 0},
            "only size": {"shared_memory_byte_size": 64},
        }
        places |= wrong_places()
        inputs = [{"name": name, "shape": [1, 16], "datatype": "INT32", "data": ROW} for name in ("INPUT0", "INPUT1")]
        for name, parameters in places.items():
            for shared in (made.shared, made.second):
                shared.buf[:SIZE] = b"\xee" * SIZE
            outputs = [{"name": "OUTPUT0", "parameters": parameters}, {"name": "OUTPUT1"}]
            answer = made.call("POST", "models/simple/infer", {"inputs": inputs, "outputs": outputs})
            for shared in (made.shared, made.second):
                written = bytes(shared.buf)
                changed = [i for i in range(SIZE) if written[i] != 0xEE]
                if changed:
                    answer["written"] = [changed[0], written[changed[0] : changed[-1] + 1].hex()]
            answers[name] = answer
        for strings, size in ((["abc", "", "d"], 16), (["abc"], 6), ([], 0), ([], 4)):
            item = {"name": "IN", "shape": [len(strings)], "datatype": "BYTES", "data": strings}
            outputs = [{"name": "OUT", "parameters": place(size=size)}]
            made.shared.buf[:16] = bytes(16)
            answer = made.call("POST", "models/id_BYTES/infer", {"inputs": [item], "outputs": outputs})
            answers[f"strings {strings} {size}"] = answer | {"written": bytes(made.shared.buf[:16]).hex()}
        both = {"name": "IN", "shape": [4], "datatype": "FP16", "parameters": place(size=8)}
        outputs = [{"name": "OUT", "parameters": place("second", 8)}]
        made.shared.buf[:8] = CONTENT[:8]
        answers["from one to the other"] = made.call(
            "POST", "models/id_FP16/infer", {"inputs": [both], "outputs": outputs}
        )
        answers["from one to the other"]["written"] = bytes(made.second.buf[:8]).hex()
        head = json.dumps(
            {
                "inputs": [
                    {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "parameters": place()},
                    {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "parameters": {"binary_data_size": 64}},
                ],
                "outputs": [
                    {"name": "OUTPUT0", "parameters": {"binary_data": True}},
                    {"name": "OUTPUT1", "parameters": place("second")},
                ],
            }
        ).encode()
        made.shared.buf[:64] = CONTENT
        answers["beside binary"] = http(
            server, "POST", "/v2/models/simple/infer", head + CONTENT, {LENGTH: str(len(head))}
        )
    return answers
