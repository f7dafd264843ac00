"""A loaded TorchScript archive, on the instance threads.

Source: docs/spec/framework-backends.md section 6.2.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.in_process import Failures, Framework, InProcessModel, Runner
from trident.core.backends.pytorch.backend import (
    TorchSettings,
    check_archive,
    input_positions,
    module_path,
    output_positions,
)
from trident.core.backends.stub_models.torch_places import DATATYPES
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.resolve import own_inputs
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, ConfigInvalid, ModelLoadFailed, OutOfMemory, ServerError
from trident.core.inference.tensors import BYTES, Array

_log = logging.getLogger("trident.backends")

_DICTIONARY = "DictType"
_NO_CPU_MEMORY = "DefaultCPUAllocator: can't allocate memory"


def load_script(context: LoadContext) -> BackendModel:
    """Load one version: a module for each instance, or one for each device. Raises a ServerError."""
    config, spec = context.config, context.spec
    settings = TorchSettings.read(config)
    settings.log(config)
    # PyTorch has these once for the process: the last model that sets one wins.
    if settings.executor is not None:
        torch._C._jit_set_profiling_executor(settings.executor)
    if settings.profiling is not None:
        torch._C._jit_set_profiling_mode(settings.profiling)
    if settings.fuser is not None:
        torch._C._jit_set_texpr_fuser_enabled(settings.fuser)
    path = module_path(context.path, config)
    threads = settings.threads or context.threads
    names = [*spec.inputs, *_batch_inputs(config)]

    def load(placement: Placement) -> list[Any]:
        return [_load_checked(path, _device(placement), config, len(names))]

    def runner(modules: list[Any], placement: Placement) -> Runner:
        # One module for each instance, because a module may keep state; or one for all.
        try:
            module = modules[0] if settings.shares_weights else modules.pop()
        except IndexError:
            module = _load_checked(path, _device(placement), config, len(names))
        arguments = arguments_of(module)
        run = ModuleRun(
            module,
            spec,
            settings,
            inputs=None if arguments is None else input_positions(names, arguments, config.name),
            outputs=output_positions(list(spec.outputs), config.name),
            copies=writes_in_place(module.inlined_graph),
            threads=threads,
            device=_device(placement),
        )
        return Runner(run=run)

    if settings.shares_weights:
        for _ in context.placements[1:]:
            _log.info("Reusing TorchScript model for instance '%s'", config.name)
    framework = Framework(
        load=load,
        runner=runner,
        failures=_FAILURES,
        provider=lambda modules: f"PyTorch {torch.__version__}",
        threads=str(threads or "all"),
    )
    return InProcessModel(context, framework)


def check_arguments(version: Path, config: ModelConfig) -> None:
    """Load the module of a version on the CPU, and raise a ServerError unless `config` gives all its arguments."""
    count = len(config.input) + len(own_inputs(config)) + len(_batch_inputs(config))
    _load_checked(module_path(version, config), "cpu", config, count)


def _batch_inputs(config: ModelConfig) -> list[str]:
    return [name for entry in config.batch_input for name in entry.target_name]


def _load_checked(path: Path, device: str, config: ModelConfig, inputs: int) -> Any:
    module = load_module(path, device, config.name)
    arguments = arguments_of(module)
    if arguments is not None and inputs != len(arguments):
        raise ConfigInvalid(
            f"unable to load model '{config.name}', configuration expects {inputs} inputs, model provides "
            f"{len(arguments)}",
            hint=f"the arguments of forward are: {', '.join(arguments)}",
        )
    return module


def _error_of(exc: Exception, model: str) -> ServerError:
    text = f"PyTorch execute failure: {exc}"
    if isinstance(exc, torch.OutOfMemoryError | MemoryError) or _NO_CPU_MEMORY in str(exc):
        return OutOfMemory(text)
    return BackendFailed(text)


def is_poison(exc: BaseException) -> bool:
    """Return True if a CUDA context is lost. The text alone may be one that the model has from its client."""
    if "CUDA error" not in str(exc):
        return False
    try:
        for device_id in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device_id)
    except RuntimeError as error:
        return "out of memory" not in str(error)
    return False


_FAILURES = Failures(
    (torch.jit.Error, RuntimeError, ValueError, TypeError, KeyError, UnicodeError, MemoryError), _error_of, is_poison
)


def _device(placement: Placement) -> str:
    return "cpu" if placement.kind is DeviceKind.CPU else f"cuda:{placement.device_id}"


def load_module(path: Path, device: str, model: str) -> Any:
    check_archive(path, model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(str(path), map_location=device)
    except RuntimeError as exc:
        text = str(exc)
        # A native stack may follow the message.
        message = text.partition("\nException raised from")[0].strip()
        hint = None
        if "Unknown builtin op" in text or "Unknown type name" in text:
            hint = "the model uses operators of a library that is not installed here"
        elif "version" in text and "supported" in text:
            hint = f"the archive was made by a newer PyTorch than the installed {torch.__version__}"
        raise ModelLoadFailed(f"failed to load model '{model}': {message}", hint=hint) from exc


def arguments_of(module: Any) -> list[str] | None:
    """The arguments of `forward`; None if it takes one dictionary of tensors by their names.

    Raises BackendFailed, with Triton's text, for arguments that requests cannot give.
    """
    arguments = [each for each in module._c._get_method("forward").schema.arguments if each.name != "self"]
    kinds = [each.type.kind() for each in arguments]
    if kinds == [_DICTIONARY]:
        return None
    for argument, kind in zip(arguments, kinds, strict=True):
        if kind == _DICTIONARY:
            raise BackendFailed(
                "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is "
                "supported."
            )
        if kind not in ("TensorType", "ListType"):
            raise BackendFailed(
                f"An input of type '{argument.type}' was detected in the model. Only a single input of type "
                "Dict(str, Tensor) or input(s) of type Tensor are supported.",
                hint=f"give the argument '{argument.name}' of forward the type Tensor, or List[str]",
            )
    return [each.name for each in arguments]


def writes_in_place(graph: Any) -> bool:
    """Return True if `graph` has an operator that changes a tensor, such as an input or an output of an earlier run."""
    for node in graph.nodes():
        # The names of such operators end with one underscore.
        if node.kind().endswith("_") and not node.kind().endswith("__"):
            return True
        if any(writes_in_place(block) for block in node.blocks()):
            return True
    return False


_WRONG_RESULT = (
    "output must be of type Tensor, List[str] or Tuple containing one of these two types. It should not be a List / "
    "Dictionary of Tensors or a Scalar"
)


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
        if not getattr(self._prepared, "done", False):
            # PyTorch keeps these settings for each thread.
            if self._threads:
                torch.set_num_threads(self._threads)
                torch.get_num_threads()  # the thread keeps the number that is set when it first asks
            torch._C._set_graph_executor_optimize(self._settings.optimizes)
            self._prepared.done = True
        tensors = {name: self._tensor(array) for name, array in feed.items()}
        result = self._run([tensors] if self._inputs is None else [tensors[name] for name in self._inputs])
        results = result if type(result) is tuple else (result,)
        given = {_memory_of(tensor) for tensor in tensors.values() if isinstance(tensor, torch.Tensor)}
        answers = [self._array(name, datatype, results, index, given) for name, index, datatype in self._outputs]
        if self._on_gpu and self._settings.empties_cache:
            torch.cuda.empty_cache()
        return answers

    def _run(self, arguments: list[Any]) -> Any:
        settings = self._settings
        with torch.inference_mode() if settings.uses_inference_mode else torch.no_grad():
            if self._on_gpu and not settings.uses_cudnn:
                with torch.backends.cudnn.flags(enabled=False):
                    return self._module(*arguments)
            return self._module(*arguments)

    def _tensor(self, array: Array) -> Any:
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
            tensor = result
            self._check_datatype(name, datatype, DATATYPES.get(str(tensor.dtype), str(tensor.dtype)))
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
        if isinstance(result, list):
            if all(isinstance(element, str) for element in result):
                self._check_datatype(name, datatype, BYTES.name)
                array = np.empty(len(result), object)
                array[:] = [element.encode() for element in result]
                return array
            kind = type(result[0]).__name__ if result else "empty"
            raise self._wrong(f"output at index {index} must be of type Tensor or List[str], received List[{kind}]")
        raise self._wrong(_WRONG_RESULT)

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
