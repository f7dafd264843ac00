"""Runs a session on tensors that lie on its device, at addresses that a client has given.

Source: ONNX Runtime's Python API reference, IOBinding; docs/spec/shared-memory.md section 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.backends.in_process.bound_instance import BoundInput
from core.backends.onnxruntime.value_run import BF16, ValueRun
from core.config.model_spec import ModelSpec
from core.inference.region_tensors import DevicePlace
from core.inference.tensors import Array, Datatype, Shape, element_count


class DeviceRun(ValueRun):
    """A ValueRun that is also a BoundRun, for a model that `may_bind`. `device` is ONNX Runtime's name: cuda, cpu."""

    def __init__(self, session: Any, ort_value: Any, spec: ModelSpec, strings_work: bool, device: str, device_id: int):
        inputs = {name: tensor.datatype for name, tensor in spec.inputs.items()}
        outputs = {name: tensor.datatype for name, tensor in spec.outputs.items()}
        super().__init__(session, ort_value, inputs, outputs, strings_work)
        self._device, self._device_id = device, device_id
        self._batching = spec.max_batch_size > 0
        # ONNX Runtime must be told the shape of an output that it is to write somewhere.
        self._fixed = {name: tensor.dims for name, tensor in spec.outputs.items() if -1 not in tensor.dims}

    def bound(
        self,
        names: Sequence[str],
        feed: Mapping[str, Array],
        options: Any,
        inputs: Mapping[str, BoundInput],
        outputs: Mapping[str, DevicePlace],
        total: int,
    ) -> list[Array | Shape]:
        """See BoundRun. An output is written to its place if the configuration says its shape."""
        binding = self._binding
        written: dict[str, Shape] = {}
        try:
            for name, array in feed.items():
                binding.bind_ortvalue_input(name, self._value(array, self._inputs.get(name), []))
            for name, (address, shape) in inputs.items():
                kind = _element_type(self._inputs[name])
                binding.bind_input(name, self._device, self._device_id, kind, list(shape), address)
            for name in names:
                known = self._known_shape(name, outputs.get(name), total)
                if known is None:
                    binding.bind_output(name, "cpu")
                    continue
                written[name] = known
                kind = _element_type(self._outputs[name])
                binding.bind_output(name, self._device, self._device_id, kind, list(known), outputs[name].address)
            self._run(self._bound, options)
            binding.synchronize_outputs()
            values = binding.get_outputs()
            return [
                written[name] if name in written else self._read(value, self._outputs[name])
                for name, value in zip(names, values, strict=True)
            ]
        finally:
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()

    def _known_shape(self, name: str, place: DevicePlace | None, total: int) -> Shape | None:
        """The shape of an output that fits at its place; None if it is copied there after the run."""
        dims = self._fixed.get(name)
        if place is None or dims is None:
            return None
        shape = (total, *dims) if self._batching else dims
        return shape if element_count(shape) * self._outputs[name].size <= place.byte_size else None


def _element_type(datatype: Datatype) -> Any:
    return BF16.onnx_number if datatype is BF16 else datatype.dtype.type
