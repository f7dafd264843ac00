from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from tests.unit.core.grpc.grpc_client import Client, with_client
from tests.unit.core.grpc.infer_messages import echo, infer_request
from tests.unit.core.waiting.hub_thread import until
from tests.unit.fake_engine import FakeEngine


def test_calls_are_counted_by_method_and_status() -> None:
    def test(client: Client) -> None:
        for _ in range(3):
            client.call("ModelInfer", infer_request())
        client.call("ModelInfer", infer_request(model="nope"))
        client.begin("Nope")
        client.begin("/made/up")
        no_call = client.begin("ServerLive", {":method": "GET"})
        assert no_call.receiver is not None
        no_call.receiver.end()
        gone = client.begin("ModelStreamInfer")
        assert gone.receiver is not None
        gone.receiver.cancel()

        registry = CollectorRegistry()
        registry.register(client.application.request_metrics)

        def counted(method: str, status: str, count: int) -> bool:
            line = f'trident_grpc_responses_total{{method="{method}",status="{status}"}} {count}.0\n'
            return line in generate_latest(registry).decode()

        until(lambda: counted("ModelInfer", "OK", 3))
        assert counted("ModelInfer", "NOT_FOUND", 1)
        assert counted("ModelStreamInfer", "CANCELLED", 1)
        assert counted("", "UNIMPLEMENTED", 2)
        # It named a method, and was no call of it.
        assert counted("ServerLive", "UNKNOWN", 1)

    with_client(FakeEngine(echo), test)
