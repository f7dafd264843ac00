"""The models of the benchmark: the Python models answer as the ONNX models do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.models.python_models import ADD_SUB, ECHO, build
from tests.unit.core.engine.test_in_process import serving
from trident.core.frontend.bridge import ThreadBridge
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Array


def outputs(response: InferenceResponse) -> dict[str, Array]:
    assert response.error is None
    return {output.name: output.array for output in response.outputs}


@pytest.mark.slow
def test_pairs_of_models_answer_alike(tmp_path: Path) -> None:
    build(tmp_path)
    numbers = {f"INPUT{n}": np.arange(16, dtype=np.int32).reshape(1, 16) * (n + 1) for n in range(2)}
    echoed = {"INPUT": np.arange(5, dtype=np.float32).reshape(1, 5)}
    bridge = ThreadBridge()

    with serving(tmp_path) as engine:

        def ask(model: str, arrays: dict[str, Array], datatype: str) -> dict[str, Array]:
            inputs = [InputTensor(name, datatype, array.shape, array) for name, array in arrays.items()]
            return outputs(bridge.infer(engine.model(model), InferenceRequest(model, inputs)))

        for onnx, python, arrays, datatype in (
            ("simple", ADD_SUB, numbers, "INT32"),
            ("identity", ECHO, echoed, "FP32"),
        ):
            expected, found = ask(onnx, arrays, datatype), ask(python, arrays, datatype)
            assert {name: array.tolist() for name, array in found.items()} == {
                name: array.tolist() for name, array in expected.items()
            }
