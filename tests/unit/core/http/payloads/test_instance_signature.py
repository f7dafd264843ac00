from __future__ import annotations

import pytest

from tests.unit.core.http.payloads.payload_models import model, one
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.payload import check_names, instance_signature, single_input


def test_a_batching_model_stacks_its_dims() -> None:
    signature = instance_signature(one("FP32", 30), 1)
    assert signature.stacked
    assert signature.inputs["IN"].dims == (30,)


@pytest.mark.parametrize(("rank", "stacked", "dims"), [(1, True, (30,)), (None, True, (30,)), (2, False, (-1, 30))])
def test_rows_without_the_models_own_batch_dimension_are_stacked_along_it(
    rank: int | None, stacked: bool, dims: tuple[int, ...]
) -> None:
    signature = instance_signature(one("FP32", -1, 30, batch=0), rank)
    assert (signature.stacked, signature.inputs["IN"].dims) == (stacked, dims)


@pytest.mark.parametrize(
    "spec",
    [
        one("FP32", 30, batch=0),
        one("INT64", -1, batch=0),
        model({"IN": ("FP32", (-1, 30))}, {"OUT": ("FP32", (1,))}, batch=0),
        model({"A": ("FP32", (-1, 30)), "B": ("FP32", (3, 3))}, {"OUT": ("FP32", (-1,))}, batch=0),
    ],
)
def test_other_instances_are_separate(spec: object) -> None:
    assert not instance_signature(spec, None).stacked  # type: ignore[arg-type]


def test_unknown_and_missing_names_are_refused() -> None:
    spec = model({"A": ("FP32", (1,)), "B": ("FP32", (1,))}, optional="B")
    check_names(["A"], spec, "here")
    with pytest.raises(InvalidRequest, match="here: 'C' is not an input of model 'm', whose inputs are 'A', 'B'"):
        check_names(["A", "C"], spec, "here")
    with pytest.raises(InvalidRequest, match="here: input 'A' is missing"):
        check_names(["B"], spec, "here")


def test_several_inputs_are_refused_where_one_is_needed() -> None:
    assert single_input(one("FP32", 1), "this").name == "IN"
    with pytest.raises(InvalidRequest, match="this needs a model with one input, 'm' has 'A', 'B'"):
        single_input(model({"A": ("FP32", ()), "B": ("FP32", ())}), "this")


def test_the_first_unknown_name_is_reported() -> None:
    names = [f"x{n}" for n in range(20)]
    with pytest.raises(InvalidRequest, match="'x0' is not an input"):
        check_names(iter(names), one("FP32", 1), "here")
