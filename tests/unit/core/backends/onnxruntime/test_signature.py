"""Signatures from sessions."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from trident.core.backends.onnxruntime.graph import shape_of, signature_of
from trident.core.config.problem import TensorSignature
from trident.core.errors import Unsupported


@dataclass
class Argument:
    """Has the attributes of ONNX Runtime's NodeArg."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass
class Session:
    inputs: list[Argument] = field(default_factory=list)
    outputs: list[Argument] = field(default_factory=list)
    overridable: list[Argument] = field(default_factory=list)

    def get_inputs(self) -> list[Argument]:
        return self.inputs

    def get_outputs(self) -> list[Argument]:
        return self.outputs

    def get_overridable_initializers(self) -> list[Argument]:
        return self.overridable


def test_dimensions_without_a_number_are_variable() -> None:
    assert shape_of(Argument("X", "", ["batch", None, 3, -1, 0])) == (-1, -1, 3, -1, 0)
    assert shape_of(Argument("X", "", [])) == ()


def test_tensors_keep_their_order() -> None:
    session = Session(
        [Argument("B", "tensor(string)", ["n"]), Argument("A", "tensor(bfloat16)", [])],
        [Argument("O", "tensor(complex64)", [1])],
        [Argument("D", "tensor(float)", [2])],
    )
    signature = signature_of(session, "m")
    assert signature.inputs == (TensorSignature("B", "BYTES", (-1,)), TensorSignature("A", "BF16", ()))
    assert signature.outputs == (TensorSignature("O", "", (1,)),)
    assert signature.optional_inputs == (TensorSignature("D", "FP32", (2,)),)


@pytest.mark.parametrize(
    ("onnx_type", "name"),
    [
        ("seq(tensor(float))", "ONNX_TYPE_SEQUENCE"),
        ("map(int64,tensor(float))", "ONNX_TYPE_MAP"),
        ("optional(tensor(float))", "ONNX_TYPE_OPTIONAL"),
        ("sparse_tensor(float)", "ONNX_TYPE_SPARSETENSOR"),
    ],
)
def test_a_type_that_is_not_a_tensor_is_named(onnx_type: str, name: str) -> None:
    with pytest.raises(Unsupported) as caught:
        signature_of(Session([Argument("X", onnx_type, [])]), "m")
    assert caught.value.message == f"Unsupported ONNX Type '{name}' for I/O 'X', expected 'ONNX_TYPE_TENSOR'."


def test_maps_are_refused_with_the_option_of_the_exporter() -> None:
    with pytest.raises(Unsupported) as caught:
        signature_of(Session([], [Argument("Y", "seq(map(int64,tensor(float)))", [])]), "m")
    assert "zipmap=False" in (caught.value.hint or "")
