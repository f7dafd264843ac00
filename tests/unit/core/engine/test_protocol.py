"""The Engine protocol: what a front end imports for it, and that the engine implements it."""

from __future__ import annotations

import subprocess
import sys
from inspect import Signature, signature
from typing import Any

from tests.project import pure_python_only
from trident.core.engine.in_process import InferenceEngine
from trident.core.engine.protocol import Engine

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


@pure_python_only
def test_the_engine_has_every_method_of_the_protocol() -> None:
    asked = {name: _shape(method) for name, method in vars(Engine).items() if not name.startswith("_")}
    assert "model" in asked
    assert {name: _shape(getattr(InferenceEngine, name)) for name in asked} == asked


def _shape(method: Any) -> Signature:
    return signature(method.fget if isinstance(method, property) else method)
