"""Compiles models with OpenVINO, and runs them.

Source: docs/spec/framework-backends.md section 6.6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.in_process import Failures, Framework, InProcessModel, Run, Runner
from trident.core.backends.model_files import content_hint, written_by
from trident.core.backends.openvino.backend import OpenVinoSettings, model_path
from trident.core.config.placement import Placement
from trident.core.config.problem import InvalidModelConfig, ModelSignature, Problem, TensorSignature
from trident.core.config.schema import ModelConfig, ModelInput, ModelOutput, datatype_of, model_dims
from trident.core.config.validate import validate_against_signature
from trident.core.errors import BackendFailed, ModelLoadFailed, ServerError
from trident.core.inference.tensors import Array, Shape

_DATATYPES = {
    "boolean": "BOOL",
    "f16": "FP16",
    "f32": "FP32",
    "f64": "FP64",
    **{f"i{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
}
_TYPES = {datatype: name for name, datatype in _DATATYPES.items()}

_WRONG_WEIGHTS = "Incorrect weights in bin file"
_NO_OPERATOR = re.compile(r"Cannot create (\S{1,100}) layer .*unsupported opset: (\S{1,100})")


def read_model(core: Any, path: Path) -> Any:
    try:
        return core.read_model(str(path))
    except RuntimeError as exc:
        raise failure_of(exc, "reading the model", ModelLoadFailed, _hint(path, str(exc))) from exc


def _hint(path: Path, text: str) -> str:
    if hint := content_hint(path):
        return hint
    if path.suffix == ".xml":
        weights = path.with_suffix(".bin")
        if not weights.is_file():
            return f"the weights are missing: put '{weights.name}' beside '{path.name}'"
        if hint := content_hint(weights):
            return f"'{weights.name}': {hint}"
        if _WRONG_WEIGHTS in text:
            return f"'{weights.name}' is incomplete, or belongs to another '{path.name}': copy both again"
    if match := _NO_OPERATOR.search(text):
        return (
            f"the model has the operator {match[1]} of {match[2]}, which OpenVINO {openvino.__version__} does not "
            "know: name the library that has it in the parameter CPU_EXTENSION_PATH, or install a newer OpenVINO"
        )
    return f"the file{written_by(path)} is not a model that OpenVINO {openvino.__version__} reads, or incomplete"


def failure_of(exc: Exception, step: str, failed: type[ServerError], hint: str | None = None) -> ServerError:
    # OpenVINO's messages begin with locations in its own sources and end with empty lines.
    lines = [line for line in str(exc).splitlines() if line.strip() and not line.startswith("Exception from ")]
    return failed(f"openvino error in {step} : {' '.join(lines)}", hint=hint)


def signature_of(model: Any) -> ModelSignature:
    """Return the tensors of a graph. It can batch if the layout of each says that its first dimension is the batch."""
    layouts = [str(port.get_node().layout) for port in [*model.inputs, *model.outputs]]  # such as [N,C,H,W]
    return ModelSignature(
        tuple(_tensor(port) for port in model.inputs),
        tuple(_tensor(port) for port in model.outputs),
        can_batch=all(layout.strip("[]").split(",")[0] == "N" for layout in layouts),
    )


def name_of(port: Any) -> str:
    """The name of an input or output; one without any gets that of its node.

    The graphs of TensorFlow number the results of a node, as in `y:0`: its first result has the node's name.
    """
    friendly = str(port.get_node().friendly_name)
    # Of several names the node has the one of the file.
    return (friendly if friendly in port.names or not port.names else min(port.names)).removesuffix(":0")


@dataclass(frozen=True, slots=True)
class FittedGraph:
    """A graph that is ready to be compiled. `inputs` and `outputs` are the names of its ports, in their order.

    `signature` is what it then has, with the datatypes of the configuration. `fixed_batch` is the number of rows that
    it takes at a time, if its operators allow no other; otherwise 0.
    """

    model: Any
    signature: ModelSignature
    inputs: Sequence[str]
    outputs: Sequence[str]
    fixed_batch: int = 0


def fit(read: Callable[[], Any], config: ModelConfig, *, reshapes: bool) -> FittedGraph:
    """The graph that `read` reads, with the batch, the dimensions and the datatypes of `config`.

    Raises InvalidModelConfig for what cannot be made to fit, with Triton's texts. `reshapes`: inputs get the dimensions
    of `config`.
    """
    model, fixed_batch = read(), 0
    if config.max_batch_size > 0 and not _takes_batches(model, config, -1, reshapes):
        # OpenVINO does not undo what it began to change.
        model, fixed_batch = read(), config.max_batch_size
        if not _takes_batches(model, config, fixed_batch, reshapes):
            raise InvalidModelConfig(
                [
                    Problem(
                        "max_batch_size",
                        f"the operators of model '{config.name}' allow no other first dimension than the model's own",
                        "set max_batch_size to 0",
                    )
                ]
            )
    elif config.max_batch_size == 0 and reshapes:
        _reshape(model, config, None)
    signature = signature_of(model)
    fitted = ModelSignature(
        tuple(_as_converted(signature.inputs, config.input, any_batch=bool(fixed_batch))),
        tuple(_as_converted(signature.outputs, config.output, any_batch=bool(fixed_batch))),
    )
    problems = validate_against_signature(config, fitted, config.name)
    if problems:
        raise InvalidModelConfig(problems)
    inputs = [tensor.name for tensor in signature.inputs]
    outputs = [tensor.name for tensor in signature.outputs]
    # The graph with tensors of the datatypes of `config` at its ends.
    ends = openvino.preprocess.PrePostProcessor(model)
    for entry in config.input:
        ends.input(inputs.index(entry.name)).tensor().set_element_type(_type_of(entry))
    for output in config.output:
        ends.output(outputs.index(output.name)).tensor().set_element_type(_type_of(output))
    return FittedGraph(ends.build(), fitted, inputs, outputs, fixed_batch)


def _as_converted(
    tensors: Sequence[TensorSignature], entries: Iterable[ModelInput | ModelOutput], *, any_batch: bool
) -> Iterable[TensorSignature]:
    """`tensors` with the numeric datatypes of the configuration, to which they are converted.

    `any_batch`: the first dimensions become variable.
    """
    wanted = {entry.name: datatype_of(entry.data_type) for entry in entries}
    for tensor in tensors:
        row = wanted.get(tensor.name)
        datatype = row.name if row and row.name in _TYPES and tensor.datatype else tensor.datatype
        yield replace(tensor, datatype=datatype, shape=(-1, *tensor.shape[1:]) if any_batch else tensor.shape)


def _takes_batches(model: Any, config: ModelConfig, size: int, reshapes: bool) -> bool:
    """Return True if the graph, changed in place, takes `size` rows and gives as many; -1 rows are any number."""
    try:
        _reshape(model, config, size, dims_too=reshapes)
    except RuntimeError:
        return False
    return all(tensor.shape[:1] == (size,) for tensor in signature_of(model).outputs)


def _reshape(model: Any, config: ModelConfig, size: int | None, dims_too: bool = True) -> None:
    """Give the inputs a batch of `size`, and with `dims_too` the dimensions of `config`, in place."""
    wanted = {entry.name: model_dims(entry) for entry in config.input}
    first = () if size is None else (size,)
    shapes: dict[int, Any] = {}
    for index, port in enumerate(model.inputs):
        own = _shape(port)[len(first) :]
        dims = wanted.get(name_of(port), own) if dims_too else own
        shapes[index] = openvino.PartialShape([*first, *dims])
    model.reshape(shapes)


def _type_of(entry: ModelInput | ModelOutput) -> Any:
    row = datatype_of(entry.data_type)
    return getattr(openvino.Type, _TYPES[row.name if row else ""])


def _tensor(port: Any) -> TensorSignature:
    datatype = _DATATYPES.get(str(port.get_element_type().get_type_name()), "")
    return TensorSignature(name_of(port), datatype, _shape(port))


def _shape(port: Any) -> Shape:
    """The dimensions of a port; a variable one, with bounds or without, is -1."""
    return tuple(-1 if dim.is_dynamic else dim.get_length() for dim in port.partial_shape)


def computes_bf16() -> bool:
    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


# Some operators repeat a part of the graph, or choose one, or make a tensor whose size is a value. Source: OpenVINO's
# operation sets.


_CONSTANT = "Constant"
_REPEATING = frozenset({"If", "Loop", "TensorIterator"})
# What they make is as large as an input says, unless that is a constant of the graph. With the first of these inputs.
_SIZED = {
    "AdaptiveAvgPool": 1,
    "AdaptiveMaxPool": 1,
    "Broadcast": 1,
    "Col2Im": 1,
    "DFT": 1,
    "Eye": 0,
    "IDFT": 1,
    "Interpolate": 1,
    "IRDFT": 1,
    "Multinomial": 1,
    "NonMaxSuppression": 2,
    "OneHot": 1,
    "Pad": 1,
    "RandomUniform": 0,
    "Range": 0,
    "RDFT": 1,
    "STFT": 2,
    "Tile": 1,
}


def has_bounded_graph(model: Any) -> bool:
    for node in model.get_ops():
        kind = node.get_type_name()
        first = _SIZED.get(kind)
        sizes = () if first is None else range(first, node.get_input_size())
        if kind in _REPEATING or any(
            node.input_value(index).get_node().get_type_name() != _CONSTANT for index in sizes
        ):
            return False
    return True


class Compiler:
    """OpenVINO, once for all models. Loader threads, several at once. Make it after the fork."""

    def __init__(self) -> None:
        self._core = openvino.Core()

    def signature(self, path: Path, config: ModelConfig) -> ModelSignature:
        if config.input and config.output:
            settings = OpenVinoSettings.read(config)
            graph = self._fitted(path, config, settings)
            return graph.signature
        return signature_of(read_model(self._core, model_path(path, config)))

    def load(self, context: LoadContext) -> BackendModel:
        config = context.config
        settings = OpenVinoSettings.read(config)
        properties = settings.compiled_with(context.threads, len(context.placements))
        graph = self._fitted(context.path, config, settings)

        def load(placement: Placement) -> Any:
            try:
                return self._core.compile_model(graph.model, settings.device, dict(properties))
            except RuntimeError as exc:
                raise failure_of(exc, "compiling the model", ModelLoadFailed) from exc

        inline = not settings.extension and has_bounded_graph(graph.model)

        def runner(compiled: Any, placement: Placement) -> Runner:
            run = _run_of(compiled.create_infer_request(), graph, list(context.spec.outputs))
            return Runner(run=run, may_run_inline=inline)

        framework = Framework(
            load=load,
            runner=runner,
            failures=_FAILURES,
            provider=lambda compiled: f"OpenVINO {openvino.__version__.partition('-')[0]}",
            threads=str(context.threads or "all"),
        )
        return InProcessModel(context, framework)

    def _fitted(self, path: Path, config: ModelConfig, settings: OpenVinoSettings) -> FittedGraph:
        file = model_path(path, config)
        if settings.extension:
            try:
                self._core.add_extension(settings.extension)
            except RuntimeError as exc:
                raise failure_of(exc, "adding the CPU extension", ModelLoadFailed) from exc
        return fit(lambda: read_model(self._core, file), config, reshapes=settings.reshapes)


_FAILURES = Failures(
    (RuntimeError, ValueError),
    lambda exc, model: failure_of(exc, "running the inference request", BackendFailed),
)


def _run_of(request: Any, graph: FittedGraph, outputs: Sequence[str]) -> Run:
    inputs, fixed_batch = graph.inputs, graph.fixed_batch
    order = [graph.outputs.index(name) for name in outputs]

    def run(names: list[str], feed: Mapping[str, Array], options: Any) -> list[Array]:
        arrays = [feed[name] for name in inputs]
        rows = len(arrays[0]) if fixed_batch else 0
        if fixed_batch and rows < fixed_batch:
            arrays = [_padded(array, fixed_batch) for array in arrays]
        for index, array in enumerate(arrays):
            # A tensor over the memory of the array, which lives until the run has ended; a copy if OpenVINO needs one.
            is_shared = array.flags.c_contiguous and array.flags.writeable
            request.set_input_tensor(index, openvino.Tensor(array, shared_memory=is_shared))
        # Given arrays, it would look for their tensors by type and shape, which takes longer than a small model.
        request.infer(share_outputs=True)
        # The request's next run writes into the same memory.
        copies = [np.array(request.get_output_tensor(index).data) for index in order]
        return [array[:rows] for array in copies] if fixed_batch else copies

    return run


def _padded(array: Array, rows: int) -> Array:
    whole = np.zeros((rows, *array.shape[1:]), array.dtype)
    whole[: len(array)] = array
    return whole
