"""Ragged strings in one execution, through front ends. Other ragged batches: `tests/triton_answers/batching.py`.

Source: docs/spec/model-config.md section 2.7.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.contract.grpc.grpc_requests import Responses, client_of, tensor
from tests.contract.servers.server import ServerProcess
from tests.unit.onnx_models import strings, write_version

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

CONFIG = """
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_STRING dims: -1 allow_ragged_batch: true }
output { name: "OUTPUT0" data_type: TYPE_STRING dims: -1 }
batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "OUTPUT0" source_input: "INPUT0" }
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100000000 }
response_cache { enable: true }
"""


def test_ragged_strings_share_a_batch_and_are_cached(http_workers: str, tmp_path: Path) -> None:
    write_version(strings(["elements"]), tmp_path / "models", "strings", CONFIG)
    lists: list[list[list[bytes]]] = [[[b"a", b"", b"\0b\xc3\xbf"]], [[b"c"]], [["größer".encode()] * 2], [[b"x"] * 5]]
    tensors = [tensor("INPUT0", np.array(each, np.object_), "BYTES") for each in lists]
    options = ("--shutdown-grace-secs=0", "--cache-config=local,size=1000000")
    responses = Responses()
    with ServerProcess(tmp_path / "models", tmp_path / "log", *options) as server, client_of(server) as client:
        client.start_stream(responses.put)
        for each in tensors:
            client.async_stream_infer("strings", [each])
        assert [responses.next_result().as_numpy("OUTPUT0").tolist() for _ in tensors] == lists
        again = client.infer("strings", tensors[:1])
        assert again.as_numpy("OUTPUT0").tolist() == lists[0]
        (entry,) = server.json("GET", "/v2/models/strings/stats")["model_stats"]
        assert entry["execution_count"] == 1
