"""The model of a process: runs a package of AOTInductor, or a program that torch.export has saved.

It imports nothing of the server but the library of Python models.
Source: docs/spec/framework-backends.md section 6.3.
"""

from __future__ import annotations

import json
import os
import pickle
import zipfile

# `torch.export.load` takes pickles from a package, whose loading could run any code, unless PyTorch is told not to.
os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"

import numpy as np
import torch
from torch.utils import _pytree
from trident_stub.model import ModelFailed

from batches import failed, responses, torch_device, torch_tensors
from torch_places import DATATYPES, named_leaves, places


class TritonPythonModel:
    """One instance: a package, loaded for its own device."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self._name = args["model_instance_name"]
        self._batching = config.get("max_batch_size", 0) > 0
        self._device = torch_device(args)
        states = config.get("sequence_batching", {}).get("state", [])
        self._types = {entry["name"]: entry["data_type"][len("TYPE_") :] for entry in config["output"]}
        self._types.update({state["output_name"]: state["data_type"][len("TYPE_") :] for state in states})
        path = os.path.join(args["model_repository"], args["model_version"], config["default_model_filename"])
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
        try:
            self._run, in_spec, out_spec, arguments = _loaded(path, args, self._device)
        except (RuntimeError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
            raise ModelFailed(f"{self._failure(config)}{error}") from error
        self._place(config, in_spec, out_spec, arguments)

    def execute(self, requests):
        try:
            tensors = torch_tensors(requests, self._device)
            leaves = [None] * len(self._inputs)
            for name, place in self._inputs.items():
                leaves[place] = tensors[name]
            with torch.no_grad():
                results = self._run(leaves)
        except (RuntimeError, ValueError, AssertionError) as error:
            return failed(requests, f'Inductor model instance "{self._name}" execution failure: {error}')
        arrays = {}
        for name, place in self._outputs.items():
            result = results[place]
            problem = self._problem(name, result)
            if problem:
                text = f'Failed to read output tensors for model instance "{self._name}": '
                return failed(
                    requests, f'{text}Inductor model instance "{self._name}" output tensor "{name}" {problem}'
                )
            arrays[name] = np.ascontiguousarray(result.detach().cpu().numpy())
        return responses(requests, arrays, self._batching)

    def _place(self, config, in_spec, out_spec, arguments):
        """Where each tensor of the configuration is among the arguments and results."""
        args, kwargs = _numbered(in_spec)
        inputs = {**named_leaves(list(args), "ARGS"), **named_leaves(kwargs, "KWARGS")}
        sequences = config.get("sequence_batching", {})
        names = [entry["name"] for entry in config["input"]]
        names += [entry["name"] for entry in sequences.get("control_input", []) if entry.get("control")]
        names += [state["input_name"] for state in sequences.get("state", [])]
        if len(names) != len(inputs):
            raise ModelFailed(
                f'{self._failure(config)}Failed to load model "{self._name}" configuration expects {len(names)} '
                f"inputs, but model expects {len(inputs)} inputs."
            )
        outputs = named_leaves(_numbered(out_spec), "RESULT")
        for side, wanted, leaves, known in (
            ("Input", names, inputs, arguments),
            ("Output", list(self._types), outputs, ()),
        ):
            try:
                found = places(wanted, leaves, known)
            except KeyError as error:
                raise ModelFailed(
                    f'{self._failure(config)}{side} "{error.args[0]}" for model instance "{self._name}" is not found '
                    f"in model {side.lower()} map. It has: {', '.join(sorted(leaves))}"
                ) from None
            if side == "Input":
                self._inputs = found
            else:
                self._outputs = found

    def _failure(self, config):
        return (
            f'failed to create instance "{self._name}" for inductor model "{config["name"]}": Failed to create '
            f'ModelInstanceState for model "{config["name"]}": '
        )

    def _problem(self, name, result):
        wanted = self._types[name]
        given = DATATYPES.get(str(getattr(result, "dtype", "")), type(result).__name__)
        if not isinstance(result, torch.Tensor) or given != wanted:
            return f"has datatype TYPE_{given} but model configuration expects TYPE_{wanted}."
        return "" if result.dim() else "is a scalar which is not supported."


def _loaded(path, args, device):
    """The function to run on tensors, the specifications of arguments and results, and the names of arguments."""
    with zipfile.ZipFile(path) as archive:
        is_compiled = any("/aotinductor/" in name for name in archive.namelist())
    if is_compiled:
        index = int(args["model_instance_device_id"]) if device != "cpu" else -1
        package = torch._inductor.aoti_load_package(path, device_index=index)
        in_spec, out_spec = (_pytree.treespec_loads(text) for text in package.loader.get_call_spec())
        return package.loader.run, in_spec, out_spec, ()
    program = torch.export.load(path)
    module = program.module().to(device)
    in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec

    def run(leaves):
        args, kwargs = _pytree.tree_unflatten(leaves, in_spec)
        return _pytree.tree_leaves(module(*args, **kwargs))

    return run, in_spec, out_spec, program.graph_signature.user_inputs


def _numbered(spec):
    return _pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
