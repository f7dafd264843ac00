"""The modules that models import have Triton's names, and their functions."""

from __future__ import annotations

import json

import c_python_backend_utils
import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

CONFIG = json.dumps(
    {"input": [{"name": "A", "dims": [1]}], "output": [{"name": "B"}], "model_transaction_policy": {"decoupled": True}}
)


@pytest.mark.parametrize("module", [pb_utils, c_python_backend_utils])
def test_every_name_that_is_promised_is_there(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert all(hasattr(module, name) for name in names)


def test_constants() -> None:
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START == 1
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END == 2
    assert pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE == 2
    assert pb_utils.TRITONSERVER_MEMORY_CPU is not pb_utils.TRITONSERVER_MEMORY_GPU


def test_tensors_by_name() -> None:
    tensors = [pb_utils.Tensor(name, np.zeros(1)) for name in "AB"]
    request = pb_utils.InferenceRequest(inputs=tensors, requested_output_names=[], model_name="m")
    assert pb_utils.get_input_tensor_by_name(request, "B") is tensors[1]
    assert pb_utils.get_input_tensor_by_name(request, "C") is None
    response = pb_utils.InferenceResponse(tensors)
    assert pb_utils.get_output_tensor_by_name(response, "A") is tensors[0]
    assert pb_utils.get_output_tensor_by_name(response, "C") is None


def test_configurations_by_name() -> None:
    config = json.loads(CONFIG)
    assert pb_utils.get_input_config_by_name(config, "A") == {"name": "A", "dims": [1]}
    assert pb_utils.get_input_config_by_name(config, "B") is None
    assert pb_utils.get_output_config_by_name(config, "B") == {"name": "B"}
    assert pb_utils.get_output_config_by_name({}, "B") is None
    assert pb_utils.using_decoupled_model_transaction_policy(config) is True
    assert pb_utils.using_decoupled_model_transaction_policy({}) is False


def test_datatypes() -> None:
    assert pb_utils.triton_string_to_numpy("TYPE_FP32") is np.float32
    assert pb_utils.triton_string_to_numpy("TYPE_BOOL") is bool
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    for unknown in ("TYPE_BF16", "FP32"):
        with pytest.raises(KeyError):
            pb_utils.triton_string_to_numpy(unknown)
    for number in range(1, 14):
        assert pb_utils.numpy_to_triton_type(pb_utils.triton_to_numpy_type(number)) == number
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
    assert pb_utils.triton_to_numpy_type(14) is None
    assert pb_utils.numpy_to_triton_type(np.complex64) is None
