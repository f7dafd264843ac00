"""The names that Triton's stub defines in C++, and that some models import from this module.

Source: docs/spec/python-backend.md section 4.3.
"""

# ruff: noqa: F401

from __future__ import annotations

from trident_stub.inference import (
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
    ResponseIterator,
)
from trident_stub.model import TritonError, TritonModelException
from trident_stub.server import Logger, Metric, MetricFamily, MetricKind, is_model_ready, load_model, unload_model
from trident_stub.tensor import Tensor

COUNTER = MetricKind.COUNTER
GAUGE = MetricKind.GAUGE
HISTOGRAM = MetricKind.HISTOGRAM
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU

# By this name errors mention them, and pickles find them.
for _each in (
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    Logger,
    MemoryType,
    Metric,
    MetricFamily,
    MetricKind,
    PreferredMemory,
    ResponseIterator,
    Tensor,
    TritonError,
    TritonModelException,
):
    _each.__module__ = __name__
