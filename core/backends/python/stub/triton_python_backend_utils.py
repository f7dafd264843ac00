"""The module that models import as `pb_utils`: Triton's names for the library of this server.

Source: docs/spec/python-backend.md section 4.3.
"""

# ruff: noqa: F401

from __future__ import annotations

# Models that import all names of this module get these, too.
import json
import struct

import numpy as np

from c_python_backend_utils import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    Logger,
    Metric,
    MetricFamily,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
    is_model_ready,
    load_model,
    unload_model,
)
from trident_stub.inference import get_input_tensor_by_name, get_output_tensor_by_name
from trident_stub.model import (
    ModelConfig,
    get_input_config_by_name,
    get_model_dir,
    get_output_config_by_name,
    using_decoupled_model_transaction_policy,
)
from trident_stub.tensor import (
    TRITON_STRING_TO_NUMPY,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
