"""The engine in one process: from a repository of real models to responses."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import gevent
import orjson

from tests.unit import onnx_models
from tests.unit.onnx_serving import running_engine
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.lifecycle.state import IndexEntry, ModelState

CONFIG = """
max_batch_size: 8
dynamic_batching {}
instance_group [ { kind: KIND_CPU count: 2 } ]
"""


def test_duplicate_name_in_two_repositories_is_not_served(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for repository in (first, second):
        onnx_models.write_version(onnx_models.add_sub(), repository, "simple", CONFIG)
    onnx_models.write_version(onnx_models.add_sub(), second, "other", CONFIG)
    with running_engine(first, second) as engine:
        assert engine.repository_index(ready_only=False) == [
            IndexEntry(name="other", version=1, state=ModelState.READY),
            IndexEntry(name="simple", state=ModelState.UNAVAILABLE, reason="model appears in two or more repositories"),
        ]
        assert not engine.is_ready()


def test_request_leaves_no_reference_cycle(tmp_path: Path) -> None:
    """Cycles would keep every body until the garbage collector runs, and each run would delay requests."""
    onnx_models.write_version(onnx_models.add_sub(), tmp_path, "simple", CONFIG)
    document = {
        "inputs": [{"name": f"INPUT{n}", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for n in range(2)]
    }
    body = orjson.dumps(document)
    with running_engine(tmp_path) as engine:
        bridge = GeventBridge(gevent.get_hub())
        application = V2Application(engine, HttpOptions(), bridge)

        def send() -> None:
            environ = {
                "REQUEST_METHOD": "POST",
                "PATH_INFO": "/v2/models/simple/infer",
                "trident.body": body,
                "trident.client_gone": lambda: False,
            }
            statuses: list[str] = []
            application(environ, lambda status, headers: statuses.append(status))
            assert statuses == ["200 OK"]

        send()
        gc.collect()
        gc.disable()
        try:
            for _ in range(50):
                send()
            # Fewer than one per request: only what the interpreter leaves by itself.
            assert gc.collect() < 50
        finally:
            gc.enable()
            bridge.close()


# Each of them costs a front end more memory than all of its own code.
ENGINE_ONLY = (
    "onnxruntime",
    "boto3",
    "botocore",
    "google.cloud.storage",
    "google.protobuf",
    "tritonclient",
    "trident.core.engine.in_process",
)
FRONT_END = "import trident.core.http.application, trident.core.remote.calls"


def test_a_front_end_imports_no_backend() -> None:
    code = f"import sys; {FRONT_END}; print(*[name for name in {ENGINE_ONLY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.split() == []
