"""A gRPC server as people write it with the grpcio package: a pool of threads, each of which waits for the engine.

python -m bench.servers.grpcio_server PORT REPOSITORY MODEL
"""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as services

from trident.core.engine.in_process import InferenceEngine, make_engine
from trident.core.frontend.bridge import ThreadBridge
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.lifecycle.options import EngineOptions

_THREADS = 16
_STOP_S = 10
_LARGEST = 64 << 20


class Service(services.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine
        self._bridge = ThreadBridge()

    def ServerReady(self, request: Any, context: Any) -> Any:
        return messages.ServerReadyResponse(ready=self._engine.is_ready())

    def ModelStatistics(self, request: Any, context: Any) -> Any:
        (found,) = self._engine.model_statistics(request.name)
        answer = messages.ModelStatisticsResponse()
        counts = found.statistics
        answer.model_stats.add(
            name=request.name, inference_count=counts.inference_count, execution_count=counts.execution_count
        )
        return answer

    def ModelInfer(self, message: Any, context: Any) -> Any:
        inputs = [
            InputTensor(tensor.name, tensor.datatype, tuple(tensor.shape), memoryview(content))
            for tensor, content in zip(message.inputs, message.raw_input_contents, strict=True)
        ]
        request = InferenceRequest(message.model_name, inputs, id=message.id)
        response = self._bridge.infer(self._engine.model(message.model_name), request)
        if response.error is not None:
            context.abort(grpc.StatusCode.INTERNAL, response.error.message)
        answer = messages.ModelInferResponse(
            model_name=response.model_name, model_version=str(response.model_version), id=response.id
        )
        for output in response.outputs:
            answer.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
            answer.raw_output_contents.append(bytes(output.content()))
        return answer


def main(port: str, repository: str, model: str) -> None:
    options = EngineOptions(
        repositories=(repository,), control_mode="explicit", load_models=(model,), gpu_metrics=False
    )
    engine = make_engine(options)
    engine.start()
    engine.wait_loaded(60)
    limits = [("grpc.max_receive_message_length", _LARGEST), ("grpc.max_send_message_length", _LARGEST)]
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=limits)
    services.add_GRPCInferenceServiceServicer_to_server(Service(engine), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    signal.signal(signal.SIGTERM, lambda *_: server.stop(_STOP_S))
    server.wait_for_termination()
    engine.begin_exit()
    engine.finish(_STOP_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
