"""A response callback that fails is logged and stays without consequence."""

from __future__ import annotations

import pytest

from core.inference import InferenceRequest, InferenceResponse
from core.scheduling.delivery import deliver


def test_the_callback_gets_the_response() -> None:
    request = InferenceRequest("m", [])
    answers: list[InferenceResponse] = []
    request.on_response = answers.append
    deliver(request, response := InferenceResponse("m", 1, []))
    assert answers == [response]


def test_a_failing_callback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def on_response(response: InferenceResponse) -> None:
        raise RuntimeError("the socket is gone")

    request = InferenceRequest("m", [])
    request.on_response = on_response
    deliver(request, InferenceResponse("m", 1, []))
    assert "the socket is gone" in caplog.text
