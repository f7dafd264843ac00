"""The datatypes of OpenVINO's tensors, and what a configuration may say of them. Imports no OpenVINO.

Source: docs/spec/framework-backends.md section 6.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from core.config.schema import ModelConfig, ModelInput, ModelOutput, datatype_of
from core.config.signature import ModelSignature, TensorSignature

DATATYPES = {
    "boolean": "BOOL",
    "f16": "FP16",
    "f32": "FP32",
    "f64": "FP64",
    **{f"i{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
}
"""The names of datatypes by those of OpenVINO's."""

TYPES = {datatype: name for name, datatype in DATATYPES.items()}


def tensor_name(friendly: str, names: Iterable[str]) -> str:
    """The name of an input or output with the names `names`; one without any gets `friendly`, that of its node.

    The graphs of TensorFlow number the results of a node, as in `y:0`: its first result has the node's name.
    """
    known = set(names)
    # Of several names the node has the one of the file.
    return (friendly if friendly in known or not known else min(known)).removesuffix(":0")


def begins_with_batch(layout: str) -> bool:
    """Whether `layout`, in OpenVINO's form such as `[N,C,H,W]`, names the first dimension the batch."""
    return layout.strip("[]").split(",")[0] == "N"


def as_converted(config: ModelConfig, signature: ModelSignature, *, any_batch: bool) -> ModelSignature:
    """`signature` with the numeric datatypes of `config`, to which tensors are converted.

    `any_batch`: the first dimensions become variable.
    """

    def changed(
        tensors: Sequence[TensorSignature], entries: Iterable[ModelInput | ModelOutput]
    ) -> Iterable[TensorSignature]:
        wanted = {entry.name: datatype_of(entry.data_type) for entry in entries}
        for tensor in tensors:
            row = wanted.get(tensor.name)
            datatype = row.name if row and row.name in TYPES and tensor.datatype else tensor.datatype
            yield replace(tensor, datatype=datatype, shape=(-1, *tensor.shape[1:]) if any_batch else tensor.shape)

    return ModelSignature(
        tuple(changed(signature.inputs, config.input)), tuple(changed(signature.outputs, config.output))
    )
