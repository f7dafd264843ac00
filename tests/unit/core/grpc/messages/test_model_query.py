from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from trident.core.grpc.admin_messages import ModelQuery, read_model_query


@pytest.mark.parametrize("rpc", ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"])
def test_the_requests_about_a_model_have_the_same_fields(rpc: str) -> None:
    message: Any = getattr(service_pb2, f"{rpc}Request")(name="m", version="2")
    assert read_model_query(message.SerializeToString()) == ModelQuery("m", "2")
    assert read_model_query(b"") == ModelQuery("", "")
