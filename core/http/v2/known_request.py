"""What was learnt of a request that will come again with other tensors."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from core.http.v2.response_plan import ResponsePlan
from core.inference.layout import TensorLayout
from core.inference.request import InferenceRequest


class KnownRequest:
    """A decoded request but for its id and the bytes of its tensors; `layout` is how those lie. Any thread."""

    __slots__ = ("_request", "layout", "plan")

    def __init__(self, request: InferenceRequest, layout: TensorLayout, plan: ResponsePlan) -> None:
        self.layout = layout
        self.plan = replace(plan, texts={})
        # A copy without the tensors: they are views of a body that must be free to go.
        self._request = copy(request)
        self._request.inputs = []

    def again(self, version: int, request_id: str, content: memoryview) -> tuple[InferenceRequest, ResponsePlan]:
        """The same request for `version`, with its tensors in `content`, and how its response is wanted."""
        before = self._request
        request = InferenceRequest(
            before.model_name,
            model_version=version,
            id=request_id,
            outputs=before.outputs,
            priority=before.priority,
            timeout_us=before.timeout_us,
        )
        request.layout = self.layout
        request.content = content
        if before.parameters is not None:
            request.parameters = before.parameters.copy()
        if before.correlation_id or before.sequence_start or before.sequence_end:
            request.correlation_id = before.correlation_id
            request.sequence_start = before.sequence_start
            request.sequence_end = before.sequence_end
        return request, self.plan
