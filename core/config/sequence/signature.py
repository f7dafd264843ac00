"""Checks of the controls of a sequence against the graph of its model.

Source: docs/spec/onnxruntime-backend.md section 5.4.
"""

from __future__ import annotations

from collections.abc import Iterator

from core.config.problem import Problem
from core.config.schema import DataType, ModelConfig
from core.config.sequence.resolve import resolve_sequence_spec
from core.config.signature import ModelSignature
from core.inference.tensors import BY_NAME, shape_text


def control_problems(config: ModelConfig, signature: ModelSignature, model_name: str) -> Iterator[Problem]:
    """Every contradiction between the controls of a validated `config` and `signature`, with Triton's texts."""
    sequence = resolve_sequence_spec(config)
    if sequence is None:
        return
    unable = f"unable to load model '{model_name}', sequence control"
    tensors = {tensor.name: tensor for tensor in signature.inputs}
    for control in (sequence.start, sequence.end, sequence.ready, sequence.correlation_id):
        if control is None:
            continue
        path, name, datatype = "sequence_batching.control_input", control.name, control.datatype
        tensor = tensors.get(name)
        if tensor is None:
            text = f"configuration specified sequence control '{name}', but model does not provide that input"
            yield Problem(path, text, f"the inputs of the model are: {', '.join(sorted(tensors))}")
            continue
        dims = tensor.shape[1:] if config.max_batch_size > 0 else tensor.shape
        # A dimension that the graph leaves open can be 1.
        if len(dims) != 1 or dims[0] not in (1, -1):
            text = f"{unable} '{name}' in model has dims {shape_text(dims)} but dims [1] is expected"
            yield Problem(path, text)
        if tensor.datatype != datatype.name:
            row = BY_NAME.get(tensor.datatype)
            has = row.onnx_name.removeprefix("tensor(").removesuffix(")").upper() if row else "an unknown type"
            text = f"{unable} '{name}', the model expects data-type {has} but the model configuration specifies "
            yield Problem(path, f"{text}data-type {DataType.Name(datatype.config_number)}")
