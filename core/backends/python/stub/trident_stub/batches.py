"""Executes the batches that the server sends."""

from __future__ import annotations

from typing import Any

from .channel import Channel
from .host import ModelHost
from .inference_request import InferenceRequest
from .server_calls import ServerCalls
from .wire import AGAIN, FINAL, LATER, RESULT, LayoutNumbers, read_record, write_mark


class Batches:
    """The main thread only."""

    def __init__(self, channel: Channel, calls: ServerCalls, host: ModelHost) -> None:
        self._channel = channel
        self._calls = calls
        self._host = host

    def execute(self, number: int, content: memoryview) -> None:
        """Execute batch `number` and send the outcomes. Raises ServerGone, and BadFrame."""
        requests = self._read(content)
        responses = self._host.execute(requests)
        calls, is_rescheduled = self._calls, self._host.is_rescheduled

        def write(records: list[Any], numbers: LayoutNumbers) -> None:
            for request, response in zip(requests, responses):
                if response is not None:
                    calls.close(request._number)
                    calls.write(records, numbers, request._number, response, FINAL)
                elif is_rescheduled(request):
                    calls.close(request._number)
                    write_mark(records, request._number, AGAIN)
                else:
                    write_mark(records, request._number, LATER)

        self._channel.send_records(RESULT, number, len(requests), write)

    def _read(self, content: memoryview) -> list[InferenceRequest]:
        count, at = self._channel.layouts.read_head(content)
        layouts, calls, arrived = self._channel.layouts.layouts, self._calls, InferenceRequest._arrived
        requests: list[InferenceRequest] = []
        for _ in range(count):
            record, at = read_record(content, at)
            layout = layouts[record.layout]
            calls.open(record.number)
            tensors = calls.tensors(layout, record)
            requests.append(arrived(record.number, tensors, layout.requested, record.fields))
        return requests
