"""Requests whose inputs all lie in shared memory, which were decoded before and arrive again with another id.

Clients use the same places again and again, so the whole text is the same. Parsing it takes 15 µs, finding it here 5.
Source: docs/spec/shared-memory.md section 6.
"""

from __future__ import annotations

from typing import Final

from core.frontend.known_texts import KnownTexts
from core.http.v2.known_requests import is_id_of, without_id
from core.http.v2.response_codec import ResponsePlan
from core.inference.region_tensors import RegionInput, RegionReference, RegionRequest
from core.inference.request import InferenceRequest
from core.inference.tensors import Shape

_MAX_SIZE: Final = 2048


class _KnownText:
    """A decoded request without its id. Any thread."""

    __slots__ = ("_inputs", "_request", "plan")

    def __init__(self, request: RegionRequest, inputs: list[RegionInput], plan: ResponsePlan) -> None:
        self.plan = plan
        self._inputs: list[tuple[str, str, Shape, RegionReference]] = [
            (tensor.name, tensor.datatype, tensor.shape, tensor.reference) for tensor in inputs
        ]
        # A copy, because parameters are added to a request on its way.
        plain = request.with_inputs([], model_version=request.model_version, id="")
        self._request = RegionRequest.of(plain, request.output_regions)

    def again(self, version: int, request_id: str) -> RegionRequest:
        made = self._request.with_inputs(
            [RegionInput(*each) for each in self._inputs], model_version=version, id=request_id
        )
        return RegionRequest.of(made, self._request.output_regions)


class RegionTexts:
    """Texts up to 2 KB. Any thread."""

    def __init__(self) -> None:
        self._known: KnownTexts[_KnownText] = KnownTexts()

    def recall(self, model: str, version: int, text: bytes) -> tuple[InferenceRequest, ResponsePlan] | None:
        """The request in `text`; None if it is unknown."""
        if not self._known or len(text) > _MAX_SIZE:
            return None
        text, request_id = without_id(text)
        known = self._known.get((model, text))
        if known is None:
            return None
        self._known.hits += 1
        return known.again(version, request_id), known.plan

    def remember(self, text: bytes, request: RegionRequest, plan: ResponsePlan) -> None:
        """Learn a decoded request, if all its inputs lie in shared memory."""
        inputs = [tensor for tensor in request.inputs if isinstance(tensor, RegionInput)]
        if len(text) > _MAX_SIZE or not len(inputs) == len(request.inputs) > 0 or not self._known.is_learning():
            return
        whole = text
        text, request_id = without_id(whole)
        if is_id_of(whole, request_id, request.id):
            self._known[request.model_name, text] = _KnownText(request, inputs, plan)
