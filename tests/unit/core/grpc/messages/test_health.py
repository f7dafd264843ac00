from __future__ import annotations

import pytest
from tritonclient.grpc.service_pb2 import ModelReadyResponse, ServerLiveResponse, ServerReadyResponse

from trident.core.grpc.admin_messages import flag_message, health_message


@pytest.mark.parametrize("value", [True, False])
def test_flags(value: bool) -> None:
    assert ServerLiveResponse.FromString(flag_message(value)).live is value
    assert ServerReadyResponse.FromString(flag_message(value)).ready is value
    assert ModelReadyResponse.FromString(flag_message(value)).ready is value


def test_the_status_of_the_health_service() -> None:
    assert health_message(True) == b"\x08\x01"
    assert health_message(False) == b"\x08\x02"
