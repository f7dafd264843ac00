"""The methods of the services.

Source: docs/spec/grpc.md section 1, groups: section 2.
"""

from __future__ import annotations

from core.grpc.calls.infer_call import InferCall
from core.grpc.calls.reflection_call import ReflectionCall
from core.grpc.calls.rpc_call import RpcCall
from core.grpc.calls.stream_infer_call import StreamInferCall
from core.grpc.calls.watch_call import WatchCall
from core.grpc.methods import Method, Rpc
from core.grpc.rpcs import health, metadata, repository, shared_memory
from core.grpc.rpcs.log_settings import log_settings
from core.grpc.rpcs.trace_settings import trace_settings

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"


def methods(*, reflection: bool) -> list[Method]:
    """The rows of a front end, which counts in them."""
    versions = ("v1", "v1alpha") if reflection else ()
    return [
        Method(INFERENCE, "ModelInfer", "inference", InferCall),
        Method(INFERENCE, "ModelStreamInfer", "inference", StreamInferCall),
        Method(INFERENCE, "ServerLive", "health", RpcCall, health.server_live),
        Method(INFERENCE, "ServerReady", "health", RpcCall, health.server_ready),
        _waiting("ModelReady", "health", health.model_ready),
        _waiting("ServerMetadata", "metadata", metadata.server_metadata),
        _waiting("ModelMetadata", "metadata", metadata.model_metadata),
        _waiting("ModelConfig", "model-config", metadata.model_config),
        _waiting("ModelStatistics", "statistics", metadata.model_statistics),
        _waiting("RepositoryIndex", "model-repository", repository.index),
        _waiting("RepositoryModelLoad", "model-repository", repository.load),
        _waiting("RepositoryModelUnload", "model-repository", repository.unload),
        _waiting("SystemSharedMemoryStatus", "shared-memory", shared_memory.system_status),
        _waiting("SystemSharedMemoryRegister", "shared-memory", shared_memory.system_register),
        _waiting("SystemSharedMemoryUnregister", "shared-memory", shared_memory.system_unregister),
        _waiting("CudaSharedMemoryStatus", "shared-memory", shared_memory.cuda_status),
        _waiting("CudaSharedMemoryRegister", "shared-memory", shared_memory.cuda_register),
        _waiting("CudaSharedMemoryUnregister", "shared-memory", shared_memory.cuda_unregister),
        _waiting("TraceSetting", "trace", trace_settings),
        _waiting("LogSettings", "logging", log_settings),
        Method(HEALTH, "Check", "health", RpcCall, health.check),
        Method(HEALTH, "Watch", "health", WatchCall),
        *(
            Method(f"grpc.reflection.{version}.ServerReflection", "ServerReflectionInfo", "", ReflectionCall)
            for version in versions
        ),
    ]


def _waiting(name: str, group: str, rpc: Rpc) -> Method:
    """An RPC that may wait for the engine's process, for storage, or for protobuf to be loaded."""
    return Method(INFERENCE, name, group, RpcCall, rpc, waits=True)
