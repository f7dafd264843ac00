"""What one instance of a TorchScript model runs.

Source: docs/spec/framework-backends.md section 6.2, "Run".
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from core.backends.pytorch.torch_settings import TorchSettings
from core.config.model_spec import ModelSpec
from core.errors import BackendFailed
from core.inference.tensors import BYTES, Array

_WRONG_RESULT = (
    "output must be of type Tensor, List[str] or Tuple containing one of these two types. It should not be a List / "
    "Dictionary of Tensors or a Scalar"
)
# As Triton names the datatypes of tensors in its texts.
_DATATYPES = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}


class ModuleRun:
    """A Run: takes the arrays of a batch and returns those of the results. Instance thread.

    `inputs` and `outputs` are the positions of the tensors among the arguments of `forward` and among its results;
    without `inputs` the module takes one dictionary. `copies`: the module changes tensors in place, so that it gets and
    gives copies. `device` is `cpu` or `cuda:0`.
    """

    def __init__(
        self,
        module: Any,
        spec: ModelSpec,
        settings: TorchSettings,
        *,
        inputs: Mapping[str, int] | None,
        outputs: Mapping[str, int],
        copies: bool,
        threads: int,
        device: str,
    ) -> None:
        self._module = module
        self._model = spec.name
        self._settings = settings
        self._inputs = None if inputs is None else sorted(inputs, key=lambda name: inputs[name])
        self._outputs = [(name, outputs[name], spec.outputs[name].datatype.name) for name in spec.outputs]
        self._copies = copies
        self._threads = threads
        self._on_gpu = device != "cpu"
        self._device = device
        self._prepared = threading.local()

    def __call__(self, names: list[str], feed: Mapping[str, Array], options: Any) -> list[Array]:
        """Raises BackendFailed for a result that cannot be served, and what PyTorch raises."""
        if not getattr(self._prepared, "done", False):
            self._prepare_thread()
        tensors = {name: self._tensor(array) for name, array in feed.items()}
        result = self._run([tensors] if self._inputs is None else [tensors[name] for name in self._inputs])
        results = result if type(result) is tuple else (result,)
        given = {_memory_of(tensor) for tensor in tensors.values() if isinstance(tensor, torch.Tensor)}
        answers = [self._array(name, datatype, results, index, given) for name, index, datatype in self._outputs]
        if self._on_gpu and self._settings.empties_cache:
            torch.cuda.empty_cache()
        return answers

    def _prepare_thread(self) -> None:
        """PyTorch keeps these settings for each thread."""
        if self._threads:
            torch.set_num_threads(self._threads)
            torch.get_num_threads()  # the thread keeps the number that is set when it first asks
        torch._C._set_graph_executor_optimize(self._settings.optimizes)
        self._prepared.done = True

    def _run(self, arguments: list[Any]) -> Any:
        settings = self._settings
        with torch.inference_mode() if settings.uses_inference_mode else torch.no_grad():
            if self._on_gpu and not settings.uses_cudnn:
                with torch.backends.cudnn.flags(enabled=False):
                    return self._module(*arguments)
            return self._module(*arguments)

    def _tensor(self, array: Array) -> Any:
        """The argument for an input: a tensor, or the elements of strings."""
        if array.dtype == object:
            return array.reshape(-1).tolist()
        if self._copies:
            array = array.copy()
        # A tensor of read-only memory is as good as any, because nothing writes into it.
        tensor = torch.from_numpy(array) if array.flags.writeable else torch.from_dlpack(array)
        return tensor.to(self._device) if self._on_gpu else tensor

    def _array(self, name: str, datatype: str, results: tuple[Any, ...], index: int, given: set[int]) -> Array:
        if index >= len(results):
            raise self._wrong(
                f"The output {name} in the model configuration refers to an output index which doesn't exist. This "
                f"model has {len(results)} outputs"
            )
        result = results[index]
        if isinstance(result, torch.Tensor):
            return self._array_of_tensor(name, datatype, result, given)
        if isinstance(result, list):
            if all(isinstance(element, str) for element in result):
                self._check_datatype(name, datatype, BYTES.name)
                array = np.empty(len(result), object)
                array[:] = [element.encode() for element in result]
                return array
            kind = type(result[0]).__name__ if result else "empty"
            raise self._wrong(f"output at index {index} must be of type Tensor or List[str], received List[{kind}]")
        raise self._wrong(_WRONG_RESULT)

    def _array_of_tensor(self, name: str, datatype: str, tensor: Any, given: set[int]) -> Array:
        self._check_datatype(name, datatype, _DATATYPES.get(tensor.dtype, str(tensor.dtype)))
        if not tensor.dim():
            raise self._wrong(f"output '{name}' is a scalar which is not supported.")
        tensor = tensor.detach()
        if self._on_gpu:
            tensor = tensor.cpu()
        elif self._copies or _memory_of(tensor) in given:
            # The next batch overwrites the memory of an input.
            tensor = tensor.clone()
        array: Array = tensor.contiguous().resolve_conj().resolve_neg().numpy()
        return array

    def _check_datatype(self, name: str, wanted: str, given: str) -> None:
        if wanted != given:
            raise self._wrong(
                f"configuration expects datatype TYPE_{_config_name(wanted)} for output '{name}', model provides "
                f"TYPE_{_config_name(given)}"
            )

    def _wrong(self, message: str) -> BackendFailed:
        return BackendFailed(message, model=self._model)


def _memory_of(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _config_name(datatype: str) -> str:
    return "STRING" if datatype == BYTES.name else datatype
