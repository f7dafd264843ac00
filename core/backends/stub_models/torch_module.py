"""The model of a process: runs a module that its user has written in Python (`runtime: "model.py"`).

Source: docs/spec/framework-backends.md section 6.2, "Python runtime".
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
import warnings

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from trident_stub.model import ModelFailed

from batches import failed, responses, torch_device, torch_tensors

_COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"


class TritonPythonModel:
    """One instance: the module, on its own device."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in (config.get("parameters") or {}).items()}
        self._batching = config.get("max_batch_size", 0) > 0
        self._device = torch_device(args)
        self._inputs = [entry["name"] for entry in config["input"]]
        self._outputs = [entry["name"] for entry in config["output"]]
        threads, between = (int(parameters.get(name, "1")) for name in ("NUM_THREADS", "NUM_INTEROP_THREADS"))
        torch.set_num_threads(threads)
        torch.set_num_interop_threads(between)
        pb_utils.Logger.log_info(
            f"Torch parallelism settings for '{args['model_name']}': NUM_THREADS = {threads}; NUM_INTEROP_THREADS = "
            f"{between}; "
        )
        folder = os.path.join(args["model_repository"], args["model_version"])
        self._module = _module(_file(folder, config.get("default_model_filename", "")), parameters).to(self._device)
        self._module.eval()

    def execute(self, requests):
        try:
            tensors = torch_tensors(requests, self._device)
            with torch.no_grad():
                results = self._module(*[tensors[name] for name in self._inputs if name in tensors])
        except (RuntimeError, ValueError, TypeError) as error:
            return failed(requests, str(error))
        results = results if isinstance(results, (list, tuple)) else (results,)
        arrays = {
            name: np.ascontiguousarray(result.detach().cpu().numpy()) for name, result in zip(self._outputs, results)
        }
        return responses(requests, arrays, self._batching)


def _file(folder, named):
    names = [name for name in (named, "model.py", "model.pt") if name]
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    raise ModelFailed(f"No model found in {folder}/{names}")


def _module(path, parameters):
    if not path.endswith(".py"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(path, map_location="cpu")
    sys.path.append(os.path.dirname(path))
    specification = importlib.util.spec_from_file_location("user_model", path)
    written = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(written)
    classes = [
        kind
        for _, kind in sorted(inspect.getmembers(written, inspect.isclass))
        if issubclass(kind, torch.nn.Module) and kind.__module__ == written.__name__
    ]
    if not classes:
        raise ModelFailed("Cannot find a subclass of torch.nn.Module")
    module = classes[0]()
    weights = path[: -len(".py")] + ".pt"
    if os.path.isfile(weights):
        module.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    # Compiled if the parameter says how. Triton compiles always, which costs minutes and a compiler.
    text = parameters.get(_COMPILE)
    if text is None:
        return module
    options = json.loads(text)
    if "model" in options:
        raise ModelFailed("'model' is not an optional parameter for 'torch.compile'")
    return torch.compile(module, **options)
