"""Classes of a ZipMap with NVIDIA's client, `tritonclient.http`. Source: docs/spec/http.md section 6."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.unit.onnx_models import classifier, write_version
from trident.core.inference.tensors import Array

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("tritonclient")
    repository = link_models(folder / "models", "simple")
    write_version(classifier(("cat", "dog", "fish")), repository, "zipped")
    with ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0") as running:
        yield running
        assert "Traceback" not in running.log_text()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address, concurrency=8) as client:
        yield client


def tensor(name: str, values: Array, datatype: str, *, binary: bool = True) -> Any:
    made = triton.InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values, binary_data=binary)
    return made


@pytest.mark.parametrize("binary", [True, False])
def test_zip_map_labels_are_returned(client: Any, binary: bool) -> None:
    rows = np.array([[1, 2, 3, 4], [1, -1, -2, -3]], np.float32)
    outputs = [triton.InferRequestedOutput("output_probability", binary_data=binary, class_count=2)]
    answer = client.infer("zipped", [tensor("X", rows, "FP32", binary=binary)], outputs=outputs)
    classes = answer.as_numpy("output_probability")
    texts = [[text if isinstance(text, str) else text.decode() for text in row] for row in classes]
    assert texts == [["10.000000:2:fish", "6.000000:1:dog"], ["0.000000:0:cat", "-2.000000:1:dog"]]
