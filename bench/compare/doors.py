"""Triton's doors that the commit measured beside it did not have: gRPC, and models in Python.

Each is compared with a request that the commit did have, add/sub as binary HTTP, which was measured in the same run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.cases import CASES, Case
from bench.python.models import ADD_SUB

THEN = next(case for case in CASES if case.key == "a-binary")
"""What the commit of then is asked."""


@dataclass(frozen=True, slots=True)
class Door:
    """What this checkout is asked; `triton` is the name of Triton's figure for the same."""

    case: Case
    triton: str


GRPC_CASES = (
    replace(THEN, key="grpc", title="add/sub of 16 integers, ModelInfer"),
    replace(THEN, key="grpc-stream", title="add/sub of 16 integers, ModelStreamInfer"),
)
DOORS = (
    Door(GRPC_CASES[0], "Triton over gRPC, raw client"),
    Door(
        replace(THEN, key="python", title="add/sub of 16 integers, Python model", model=ADD_SUB),
        "Triton's Python backend",
    ),
)
CONNECTIONS = (1, 16, 64)
