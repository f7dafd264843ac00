"""Runs a session whose large outputs are written where they are sent from.

Source: ONNX Runtime's Python API reference, IOBinding.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from core.backends.in_process.instance import Run
from core.backends.onnxruntime.session import FAILURES
from core.config.model_spec import ModelSpec
from core.inference.request import OutputMemory
from core.inference.tensors import Array, Shape, element_count

_log = logging.getLogger("trident.backends")

# To bind the tensors of a run takes 20 µs, to copy so many bytes 50.
_LARGE = 1 << 19
_CPU = "cpu"

# A dimension: its size, or the input and the axis that have the same name in the graph.
_Dimension = int | tuple[str, int]


class PlacedRun:
    """Runs `session` on the CPU for one instance. One thread at a time. `run` is that of the session.

    The graph has to say the shapes of the outputs: by numbers, or by the names that dimensions of its inputs have. If
    what it says proves wrong, outputs are copied from then on.
    """

    def __init__(self, session: Any, ort_value: Any, run: Run, spec: ModelSpec) -> None:
        axes = {
            dim: (argument.name, axis)
            for argument in session.get_inputs()
            for axis, dim in enumerate(argument.shape)
            if isinstance(dim, str)
        }
        self._ort_value = ort_value
        self._run = run
        self._model = spec.name
        self._dtypes = {name: output.datatype.dtype for name, output in spec.outputs.items()}
        self._dimensions: dict[str, list[_Dimension]] = {}
        for argument in session.get_outputs():
            dims = [dim if isinstance(dim, int) else axes.get(dim) for dim in argument.shape]
            known = [dim for dim in dims if dim is not None]
            if argument.name in self._dtypes and len(known) == len(dims):
                self._dimensions[argument.name] = known
        self._binding = session.io_binding()
        # As in ValueRun.
        self._run_bound = getattr(session, "_sess", session).run_with_iobinding
        self._bound = getattr(self._binding, "_iobinding", self._binding)

    @property
    def knows_shapes(self) -> bool:
        """Whether there is an output that can be placed."""
        return bool(self._dimensions)

    def __call__(
        self, names: list[str], feed: Mapping[str, Array], run_options: Any, memory: OutputMemory
    ) -> Sequence[Array]:
        """As `run`, with large outputs in `memory` as far as there is some. Raises what ONNX Runtime raises."""
        placed = self._placed(names, feed, memory)
        if not placed:
            return self._run(names, feed, run_options)
        try:
            return self._run_placed(names, feed, run_options, placed)
        except FAILURES as error:
            # The plain run tells whether it fails for another reason.
            results = self._run(names, feed, run_options)
            self._dimensions = {}
            _log.info("the outputs of '%s' do not have the shapes that the graph says: %s", self._model, error)
            return results

    def _placed(self, names: list[str], feed: Mapping[str, Array], memory: OutputMemory) -> dict[str, Array]:
        """Arrays for the large outputs."""
        placed: dict[str, Array] = {}
        for name in names:
            shape = self._shape(name, feed)
            dtype = self._dtypes[name]
            size = element_count(shape) * dtype.itemsize if shape is not None else 0
            if size >= _LARGE:
                room = memory(size)
                if room is not None:
                    placed[name] = room.view(dtype).reshape(shape)
        return placed

    def _shape(self, name: str, feed: Mapping[str, Array]) -> Shape | None:
        dimensions = self._dimensions.get(name)
        if dimensions is None:
            return None
        return tuple([dim if isinstance(dim, int) else feed[dim[0]].shape[dim[1]] for dim in dimensions])

    def _run_placed(
        self, names: list[str], feed: Mapping[str, Array], run_options: Any, placed: Mapping[str, Array]
    ) -> Sequence[Array]:
        binding = self._binding
        try:
            for name, array in feed.items():
                # `bind_cpu_input` would refer to the last array until the next run: to the memory of a front end.
                binding.bind_ortvalue_input(name, self._ort_value.ortvalue_from_numpy(array))
            for name in names:
                room = placed.get(name)
                if room is None:
                    binding.bind_output(name, _CPU)
                else:
                    address = room.__array_interface__["data"][0]
                    binding.bind_output(name, _CPU, 0, room.dtype.type, room.shape, address)
            self._run_bound(self._bound, run_options)
            values = binding.get_outputs()
            return [
                placed[name] if name in placed else value.numpy() for name, value in zip(names, values, strict=True)
            ]
        finally:
            # The next run would write to outputs that are still bound.
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()
