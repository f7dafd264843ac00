from __future__ import annotations

from typing import Any

import orjson

from tests.unit.packed_tensors import spec
from trident.core.http.v2_known import RegionTexts
from trident.core.http.v2_request import decode_request
from trident.core.inference.response import RegionInput, RegionRequest

MODEL = spec(IN=("INT32", (2,)))


def text_of(**fields: Any) -> bytes:
    given = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    wanted = {"shared_memory_region": "o", "shared_memory_offset": 16, "shared_memory_byte_size": 8}
    document = {
        "inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 2], "parameters": given}],
        "outputs": [{"name": "OUT", "parameters": wanted}],
    }
    return orjson.dumps(fields | document)


def decoded(text: bytes) -> tuple[RegionRequest, Any]:
    request, plan = decode_request(text, None, -1, MODEL, 1 << 20)
    assert isinstance(request, RegionRequest)
    return request, plan


def test_a_text_that_comes_again_is_the_same_request_with_another_id() -> None:
    texts = RegionTexts()
    first = text_of(id="a", parameters={"mine": 1})
    assert texts.recall("m", -1, first) is None
    request, plan = decoded(first)
    texts.remember(first, request, plan)
    for name, version in (("größer", 3), ("a", -1)):
        found = texts.recall("m", version, text_of(id=name, parameters={"mine": 1}))
        assert found is not None
        again, same_plan = found
        assert isinstance(again, RegionRequest)
        assert (again.id, again.model_version, again.parameters) == (name, version, {"mine": 1})
        assert again.outputs == ("OUT",)
        assert again.output_regions == {"OUT": ("o", 16, 8)}
        assert again.needs_regions
        assert same_plan is plan
        (tensor,) = again.inputs
        assert isinstance(tensor, RegionInput)
        assert (tensor.name, tensor.datatype, tensor.shape) == ("IN", "INT32", (1, 2))
        assert tensor.reference == ("r", 0, 8)
        assert tensor is not request.inputs[0]
        assert again.parameters is not None
        again.parameters["added"] = 1  # as headers are
    assert texts.recall("other", -1, first) is None
    assert texts.recall("m", -1, text_of(id="a", parameters={"mine": 2})) is None


def test_other_texts_are_not_learned() -> None:
    texts = RegionTexts()
    for text in (text_of(parameters={"mine": "x" * 2048}), text_of(id='"\\')):
        texts.remember(text, *decoded(text))
        assert texts.recall("m", -1, text) is None
    mixed = orjson.loads(text_of())
    mixed["inputs"].append({"name": "B", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]})
    text = orjson.dumps(mixed)
    texts.remember(text, *decoded(text))
    assert texts.recall("m", -1, text) is None
