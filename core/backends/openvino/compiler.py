"""Compiles models with OpenVINO, and runs them.

Source: docs/spec/framework-backends.md section 6.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.in_process import Failures, Framework, InProcessModel, Run, Runner
from trident.core.backends.openvino.backend import OpenVinoSettings, model_path
from trident.core.backends.openvino.graph import (
    FittedGraph,
    failure_of,
    fit,
    has_bounded_graph,
    read_model,
    signature_of,
)
from trident.core.config.placement import Placement
from trident.core.config.problem import ModelSignature
from trident.core.config.schema import ModelConfig
from trident.core.errors import BackendFailed, ModelLoadFailed, ServerError
from trident.core.inference.tensors import Array

# Of rows that differ by rounding only: the default precision may be BF16, and many graphs are quantized.
_MARGIN = 3e-2
_TRIAL_SECONDS_AT_MOST = 10.0


class Compiler:
    """OpenVINO, once for all models. Loader threads, several at once. Make it after the fork."""

    def __init__(self) -> None:
        self._core = openvino.Core()

    def signature(self, path: Path, config: ModelConfig) -> ModelSignature:
        """The signature of the model in the version directory `path`, fitted to `config` if that is complete.

        Raises a ServerError.
        """
        if config.input and config.output:
            settings = OpenVinoSettings.read(config)
            graph = self._fitted(path, config, settings)
            return graph.signature
        return signature_of(read_model(self._core, model_path(path, config), config.name))

    def load(self, context: LoadContext) -> BackendModel:
        """Compile one version, once for all its instances. Raises a ServerError."""
        config = context.config
        settings = OpenVinoSettings.read(config)
        properties = settings.compiled_with(context.threads, len(context.placements))
        graph = self._fitted(context.path, config, settings)

        def load(placement: Placement) -> Any:
            return self._compiled(graph, settings, properties, config.name)

        inline = not settings.extension and has_bounded_graph(graph.model)

        def runner(compiled: Any, placement: Placement) -> Runner:
            run = _run_of(compiled.create_infer_request(), graph, list(context.spec.outputs))
            return Runner(run=run, may_run_inline=inline)

        def provider(compiled: Any) -> str:
            return f"OpenVINO {openvino.__version__.partition('-')[0]}"

        threads = str(context.threads or "all")
        return InProcessModel(
            context, Framework(load=load, runner=runner, failures=_FAILURES, provider=provider, threads=threads)
        )

    def _compiled(
        self, graph: FittedGraph, settings: OpenVinoSettings, properties: Mapping[str, Any], model: str
    ) -> Any:
        try:
            return self._core.compile_model(graph.model, settings.device, dict(properties))
        except RuntimeError as exc:
            raise failure_of(exc, "compiling the model", ModelLoadFailed, model) from exc

    def _fitted(self, path: Path, config: ModelConfig, settings: OpenVinoSettings) -> FittedGraph:
        file = model_path(path, config)
        if settings.extension:
            self._add_extension(settings.extension, config.name)
        return fit(lambda: read_model(self._core, file, config.name), config, reshapes=settings.reshapes)

    def _add_extension(self, library: str, model: str) -> None:
        try:
            self._core.add_extension(library)
        except RuntimeError as exc:
            raise failure_of(exc, "adding the CPU extension", ModelLoadFailed, model) from exc


def _error_of(exc: Exception, model: str) -> ServerError:
    return failure_of(exc, "running the inference request", BackendFailed, model)


_FAILURES = Failures((RuntimeError, ValueError), _error_of)


def _run_of(request: Any, graph: FittedGraph, outputs: Sequence[str]) -> Run:
    """Make the run of an instance. `outputs` are the names in the configuration's order."""
    inputs, fixed_batch = graph.inputs, graph.fixed_batch
    order = [graph.outputs.index(name) for name in outputs]

    def run(names: list[str], feed: Mapping[str, Array], options: Any) -> list[Array]:
        arrays = [feed[name] for name in inputs]
        rows = len(arrays[0]) if fixed_batch else 0
        if fixed_batch and rows < fixed_batch:
            arrays = [_padded(array, fixed_batch) for array in arrays]
        for index, array in enumerate(arrays):
            request.set_input_tensor(index, _tensor(array))
        # Given arrays, it would look for their tensors by type and shape, which takes longer than a small model.
        request.infer(share_outputs=True)
        # The request's next run writes into the same memory.
        copies = [np.array(request.get_output_tensor(index).data) for index in order]
        return [array[:rows] for array in copies] if fixed_batch else copies

    return run


def _tensor(array: Array) -> Any:
    """A tensor over the memory of `array`, which must live until the run has ended; or a copy if OpenVINO needs one."""
    flags = array.flags
    return openvino.Tensor(array, shared_memory=flags.c_contiguous and flags.writeable)


def _padded(array: Array, rows: int) -> Array:
    """`array` with rows of zeros behind its own, `rows` in all."""
    whole = np.zeros((rows, *array.shape[1:]), array.dtype)
    whole[: len(array)] = array
    return whole
