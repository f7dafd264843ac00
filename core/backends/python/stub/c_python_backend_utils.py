"""The names that Triton's stub defines in C++, and that some models import from this module.

Source: docs/spec/python-backend.md section 4.3.
"""

# ruff: noqa: F401

from __future__ import annotations

from trident_stub.business_logic import ResponseIterator, is_model_ready, load_model, unload_model
from trident_stub.errors import TritonError, TritonModelException
from trident_stub.logger import Logger
from trident_stub.metrics import Metric, MetricFamily, MetricKind
from trident_stub.request import InferenceRequest, InferenceTrace, MemoryType, PreferredMemory
from trident_stub.response import InferenceResponse, InferenceResponseSender
from trident_stub.tensor import Tensor

TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
