"""Models that a model loads, unloads and asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from trident_stub.errors import TritonModelException
from trident_stub.model_control import is_model_ready, load_model, unload_model

from tests.unit.core.backends.python.stub.trident_stub.memory_server import MemoryServer


def test_the_calls(memory_server: MemoryServer) -> None:
    memory_server.answers["is_model_ready"] = {"ready": True}
    load_model("m")
    load_model(model_name="m", config="{}", files={"file:1/model.py": b"\xff"})
    unload_model("m")
    unload_model("m", unload_dependents=True)
    assert is_model_ready("m")
    assert is_model_ready(model_name="m", model_version="2")
    assert memory_server.calls == [
        ("load_model", {"model_name": "m", "config": "", "files": {}}),
        ("load_model", {"model_name": "m", "config": "{}", "files": {"file:1/model.py": "/w=="}}),
        ("unload_model", {"model_name": "m", "unload_dependents": False}),
        ("unload_model", {"model_name": "m", "unload_dependents": True}),
        ("is_model_ready", {"model_name": "m", "model_version": ""}),
        ("is_model_ready", {"model_name": "m", "model_version": "2"}),
    ]


@pytest.mark.parametrize(
    ("call", "name", "prefix"),
    [
        (load_model, "load_model", "Failed to load model: "),
        (unload_model, "unload_model", "Failed to unload model: "),
        (is_model_ready, "is_model_ready", "Failed to check model readiness: "),
    ],
)
def test_refusals_have_a_prefix(
    memory_server: MemoryServer, call: Callable[[str], Any], name: str, prefix: str
) -> None:
    memory_server.refusals[name] = "why"
    with pytest.raises(TritonModelException) as caught:
        call("m")
    assert str(caught.value) == f"{prefix}why"


@pytest.mark.parametrize("version", ["0", "-1", "a", "1.0", "\u0661"])
def test_versions_are_positive_integers(version: str) -> None:
    with pytest.raises(TritonModelException, match=r"^Failed to check model readiness: .*an integer greater than 0$"):
        is_model_ready("m", version)


@pytest.mark.parametrize(
    "call",
    [
        lambda: load_model(None),  # type: ignore[arg-type]
        lambda: load_model("m", None),  # type: ignore[arg-type]
        lambda: load_model("m", files={"file:a": "text"}),  # type: ignore[dict-item]
        lambda: unload_model("m", None),  # type: ignore[arg-type]
        lambda: is_model_ready("m", 1),  # type: ignore[arg-type]
    ],
)
def test_wrong_types(memory_server: MemoryServer, call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="must be a"):
        call()
    assert memory_server.calls == []
