from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.unit.bucket_configs import bucket_text
from tests.unit.core.scheduling.echo_instance import EchoInstance
from tests.unit.core.scheduling.later_bench import LaterStub, text
from tests.unit.onnx_models import identity
from tests.unit.onnx_serving import serving
from tests.unit.pending_requests import ignore
from trident.core.config.request_check import RequestValidator
from trident.core.errors import BackendFailed, InvalidRequest
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import CloseReason, InferenceRequest
from trident.core.inference.response import Outputs
from trident.core.inference.streaming import LATER, DeferredOutcome, ResponseSender
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import BucketStatistics
from trident.core.scheduling.execution import execute_in_bucket, run_once


def test_run_once_returns_the_outputs_of_each_request() -> None:
    requests = [InferenceRequest("m", [], id=id) for id in "ab"]
    outputs = run_once(EchoInstance(), requests, lambda request: (1, None))
    assert [tensors[0].array[0] for tensors in outputs] == ["a", "b"]


@pytest.mark.parametrize(("ids", "error"), [("ax", ValueError), ("ae", InvalidRequest)])
def test_run_once_raises_the_error_of_the_batch_or_of_a_request(ids: str, error: type[Exception]) -> None:
    requests = [InferenceRequest("m", [], id=id) for id in ids]
    with pytest.raises(error):
        run_once(EchoInstance(ValueError), requests, lambda request: (1, None))


def test_run_once_waits_for_requests_that_are_answered_later() -> None:
    def answer(request: InferenceRequest, sender: ResponseSender) -> Outputs | Exception | DeferredOutcome:
        def send() -> None:
            sender.send(text("first"))
            sender.send(text("second"))
            sender.send(None, final=True)

        if request.id == "now":
            return text("outcome")
        threading.Thread(target=send).start()
        return LATER

    requests = [InferenceRequest("m", [], id=id) for id in ("now", "later")]
    outputs = run_once(LaterStub(answer=answer), requests, lambda request: (1, None))
    assert [tensors[0].array[0] for tensors in outputs] == [b"outcome", b"first"]


@pytest.mark.parametrize("is_dropped", [False, True])
def test_run_once_raises_what_a_sender_says(is_dropped: bool) -> None:
    def answer(request: InferenceRequest, sender: ResponseSender) -> Outputs | Exception | DeferredOutcome:
        if not is_dropped:
            sender.send(text("first"))
            sender.send(None, error=BackendFailed("no sender is good"), final=True)
        return LATER

    with pytest.raises(BackendFailed, match="sender"):
        run_once(LaterStub(answer=answer), [InferenceRequest("m", [])], lambda request: (1, None))


def test_the_padding_of_an_execution_is_counted_and_that_of_a_warmup_is_not(tmp_path: Path) -> None:
    statistics = ModelStatistics()
    with serving(identity(), bucket_text(BATCH_BUCKETS="4,8"), tmp_path) as model:
        request = model.request({"INPUT0": np.ones((3, 2), np.float32)})
        validator = RequestValidator(model.spec)
        run_once(model.instance, [request], validator.check)
        pending = PendingRequest(request, ignore)
        pending.batch_size = 3
        execute_in_bucket(model.instance, [pending], CloseReason.FULL, statistics, time.monotonic_ns)
    (bucket,) = statistics.snapshot().buckets
    assert bucket == BucketStatistics(batch_size=4, length=0, execution_count=1, element_count=6, padding_count=2)
