"""The methods of the services.

Source: docs/spec/grpc.md section 1, groups: section 2.
"""

from __future__ import annotations

from core.grpc.calls.infer_call import InferCall
from core.grpc.calls.rpc_call import RpcCall
from core.grpc.calls.stream_infer_call import StreamInferCall
from core.grpc.methods import Method
from core.grpc.rpcs import health

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"


def methods(*, reflection: bool) -> list[Method]:
    """The rows of a front end, which counts in them."""
    return [
        Method(INFERENCE, "ModelInfer", "inference", InferCall),
        Method(INFERENCE, "ModelStreamInfer", "inference", StreamInferCall),
        Method(INFERENCE, "ServerLive", "health", RpcCall, health.server_live),
        Method(INFERENCE, "ServerReady", "health", RpcCall, health.server_ready),
        Method(HEALTH, "Check", "health", RpcCall, health.check),
    ]
