from __future__ import annotations

import numpy as np

from tests.unit.core.http.payloads.payload_models import model, one
from trident.core.http.payloads.payload import DecodedPayload, split_instances
from trident.core.inference.request import InputTensor
from trident.core.inference.tensors import Array


def shapes_and_values(requests: list[list[InputTensor]]) -> list[list[tuple[tuple[int, ...], object]]]:
    return [[(t.shape, np.asarray(t.data).tolist()) for t in tensors] for tensors in requests]


def rows(count: int, *dims: int) -> Array:
    return np.arange(count * int(np.prod(dims)), dtype=np.float32).reshape(count, *dims)


def test_a_batch_is_one_request() -> None:
    payload = DecodedPayload(arrays={"IN": rows(3, 2)}, count=3, stacked=True)
    (request,) = split_instances(payload, one("FP32", 2, batch=3))
    assert (request[0].name, request[0].datatype, request[0].shape) == ("IN", "FP32", (3, 2))
    assert request[0].data is payload.arrays["IN"]


def test_a_batch_over_the_models_limit_is_split() -> None:
    payload = DecodedPayload(arrays={"IN": rows(5, 1)}, count=5, stacked=True)
    requests = split_instances(payload, one("FP32", 1, batch=2))
    assert shapes_and_values(requests) == [
        [((2, 1), [[0.0], [1.0]])],
        [((2, 1), [[2.0], [3.0]])],
        [((1, 1), [[4.0]])],
    ]


def test_without_a_batch_dimension_each_instance_is_a_request() -> None:
    spec = model({"A": ("FP32", (2,)), "B": ("FP32", ())}, batch=0)
    payload = DecodedPayload(arrays={"A": rows(2, 2), "B": rows(2)}, count=2, stacked=False)
    assert shapes_and_values(split_instances(payload, spec)) == [
        [((2,), [0.0, 1.0]), ((), 0.0)],
        [((2,), [2.0, 3.0]), ((), 1.0)],
    ]


def test_whole_tensors_and_own_batch_dimensions_are_one_request() -> None:
    for count, stacked in ((None, False), (3, True)):
        payload = DecodedPayload(arrays={"IN": rows(3, 2)}, count=count, stacked=stacked)
        assert len(split_instances(payload, one("FP32", -1, 2, batch=0))) == 1


def test_each_row_of_another_shape_is_a_request() -> None:
    rows: list[dict[str, Array]] = [{"IN": np.zeros(2, np.float32)}, {"IN": np.zeros(3, np.float32)}]
    payload = DecodedPayload(arrays={}, count=2, stacked=False, rows=rows)
    requests = split_instances(payload, one("FP32", -1, batch=0))
    assert [
        [(given.name, given.shape, given.data is rows[n]["IN"]) for given in r] for n, r in enumerate(requests)
    ] == [
        [("IN", (2,), True)],
        [("IN", (3,), True)],
    ]
