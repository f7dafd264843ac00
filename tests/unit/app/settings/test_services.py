from __future__ import annotations

from trident.adapters.common.options import Service


def test_a_service_is_its_name_in_messages() -> None:
    assert [f"{each}" for each in Service] == ["GRPC", "HTTP", "SageMaker", "Vertex AI", "metrics"]
