"""A server in memory for the library, and models from their source."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from trident_stub import server
from trident_stub.host import ModelHost
from trident_stub.model import Phase, RunningModel, set_running_model

from tests.unit.core.backends.python.stub.trident_stub.memory_server import MemoryServer

MakeHost = Callable[..., ModelHost]


@pytest.fixture
def memory_server() -> Iterator[MemoryServer]:
    """The connected server. The library believes that its model serves."""
    made = MemoryServer()
    server.connect(made)
    set_running_model(RunningModel("model", "/models/model/1", outputs=frozenset("AB"), phase=Phase.SERVING))
    yield made
    server.connect(None)
    set_running_model(RunningModel())


@pytest.fixture
def make_host(memory_server: MemoryServer, tmp_path: Path) -> Iterator[MakeHost]:
    """Makes the host of a model from the source of its file, which it leaves to the test to initialize."""
    path = list(sys.path)
    hosts: list[ModelHost] = []

    def make(source: str, *, file: str = "1/model.py", **config: Any) -> ModelHost:
        model_file = tmp_path / file
        model_file.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "1").mkdir(exist_ok=True)
        model_file.write_text(textwrap.dedent(source))
        args = {
            "model_config": json.dumps({"name": "model", **config}),
            "model_instance_kind": "CPU",
            "model_instance_name": "model_0_0",
            "model_instance_device_id": "0",
            "model_repository": str(tmp_path),
            "model_version": "1",
            "model_name": "model",
        }
        hosts.append(ModelHost(args, str(model_file)))
        return hosts[-1]

    yield make
    for host in hosts:
        host.finalize()
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if name == "1" or str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
