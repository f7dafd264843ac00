"""Classes of a ZipMap with NVIDIA's client, `tritonclient.http`. Source: docs/spec/http.md section 6."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from tests.contract.servers.server import ServerProcess
from tests.unit.onnx_models import classifier, write_version

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]


def test_zip_map_labels_are_returned(http_workers: str, tmp_path: Path) -> None:
    write_version(classifier(("cat", "dog", "fish")), tmp_path / "models", "zipped")
    rows = triton.InferInput("X", [2, 4], "FP32")
    with (
        ServerProcess(tmp_path / "models", tmp_path / "log", "--shutdown-grace-secs=0") as server,
        triton.InferenceServerClient(server.address) as client,
    ):
        for binary in (True, False):
            rows.set_data_from_numpy(np.array([[1, 2, 3, 4], [1, -1, -2, -3]], np.float32), binary_data=binary)
            wanted = [triton.InferRequestedOutput("output_probability", binary_data=binary, class_count=2)]
            classes = client.infer("zipped", [rows], outputs=wanted).as_numpy("output_probability")
            texts = [[text if isinstance(text, str) else text.decode() for text in row] for row in classes]
            assert texts == [["10.000000:2:fish", "6.000000:1:dog"], ["0.000000:0:cat", "-2.000000:1:dog"]]
