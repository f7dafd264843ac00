"""What was learnt of a request that will come again with other tensors."""

from __future__ import annotations

from dataclasses import replace

from core.http.v2.response_plan import ResponsePlan
from core.inference.layout import TensorLayout
from core.inference.request import InferenceRequest, PackedInputs


class KnownRequest:
    """A decoded request but for its id and the bytes of its tensors; `layout` is how those lie. Any thread."""

    __slots__ = ("_request", "layout", "plan")

    def __init__(self, request: InferenceRequest, layout: TensorLayout, plan: ResponsePlan) -> None:
        self.layout = layout
        self.plan = replace(plan, texts={})
        # A copy without the tensors: they are views of a body that must be free to go.
        self._request = request.with_inputs([], model_version=request.model_version, id="")

    def again(self, version: int, request_id: str, content: memoryview) -> tuple[InferenceRequest, ResponsePlan]:
        """The same request for `version`, with its tensors in `content`, and how its response is wanted."""
        inputs = PackedInputs(self.layout, content)
        return self._request.with_inputs(inputs, model_version=version, id=request_id), self.plan
