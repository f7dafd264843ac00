"""The backend `pytorch`: TorchScript, packages of torch.export and AOTInductor, and modules that are Python code.

What is checked here is checked without importing PyTorch.
Source: docs/spec/framework-backends.md sections 6.2 and 6.3.
"""

from __future__ import annotations

import json
import logging
import platform
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.model_files import (
    PICKLE,
    TORCH_EXPORT,
    TORCH_SAVE,
    TORCH_SCRIPT,
    boolean,
    content_hint,
    field_of,
    integer,
    origin_of,
    parameters_of,
    path_of_model,
    start_of,
    written_by,
)
from trident.core.backends.python.backend import PythonBackend, names_python
from trident.core.backends.registry import check_installed, importing
from trident.core.backends.stub_models.torch_places import DATATYPES, index_of, named_leaves, places
from trident.core.config.problem import InvalidModelConfig, Problem
from trident.core.config.resolve import resolve_sequence_spec
from trident.core.config.schema import ModelConfig, ModelInput, ModelOutput, data_type_of, datatype_of, model_dims
from trident.core.errors import BackendFailed, ModelLoadFailed
from trident.core.inference.tensors import BYTES, Datatype, shape_text

_log = logging.getLogger("trident.backends")

_STUB_MODELS = Path(__file__).parents[1] / "stub_models"
_PACKAGES = "torch_aoti"
_MODULE = "model.py"
# In the module that PyTorch's build writes: a version, or None.
_CUDA = re.compile(r"^cuda\b[^=\n]*= *['\"]", re.MULTILINE)


@cache
def is_built_for_gpus() -> bool:
    """Return True if PyTorch was built with CUDA, or is missing: models then have their own, which may be."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return True
    return _CUDA.search(Path(spec.origin).with_name("version.py").read_text()) is not None


class PyTorchBackend:
    """Implements Backend: hands each model to what runs its kind. Loader threads, several at once.

    PyTorch is imported when a TorchScript archive is loaded; the other models run in processes of their own.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._packages = PythonBackend(settings, _STUB_MODELS / "torch_package.py")
        self._modules = PythonBackend(settings, _STUB_MODELS / "torch_module.py")
        self.supports_gpus = is_built_for_gpus()

    def inspect(self, path: Path, config: ModelConfig) -> None:
        """Compare the tensors of the model with the configuration, which it does not complete."""
        kind = _kind(config)
        if kind == "package":
            _check_package(path, config)
            return
        if kind == "archive":
            check_archive(module_path(path, config), config.name)
        if kind == "module" or not (config.input and config.output):
            _log.info(
                "skipping model configuration auto-complete for '%s': not supported for pytorch backend", config.name
            )
            return
        check_installed("torch", "pytorch", config.name)
        with importing("pytorch"):
            from trident.core.backends.pytorch.script_model import check_arguments
        check_arguments(path, config)

    def check(self, config: ModelConfig) -> None:
        kind = _kind(config)
        if kind == "archive":
            check_script(config)
        if kind == "archive" or not names_python(config):
            check_installed("torch", "pytorch", config.name)

    def load(self, context: LoadContext) -> BackendModel:
        self.check(context.config)
        kind = _kind(context.config)
        if kind == "archive":
            with importing("pytorch"):
                from trident.core.backends.pytorch.script_model import load_script
            return load_script(context)
        if kind == "module":
            return self._modules.load(context)
        _check_package(context.path, context.config)
        return self._packages.load(context)


def _check_package(path: Path, config: ModelConfig) -> None:
    """Raise a ServerError for a package that cannot run here, or that `config`, if it is complete, does not fit."""
    name = config.default_model_filename or "model.pt2"
    message = f'PyTorch inductor model file "{path / name}" is unreachable or inaccessible.'
    file = path_of_model(path, config, name, message=message)
    check_package(file, config.name)
    tensors = tensors_of(file) if config.input and config.output else None
    problems = list(tensors.problems(config)) if tensors else []
    if problems:
        raise InvalidModelConfig(problems)


def _kind(config: ModelConfig) -> str:
    """Return the kind of a model: `archive` of TorchScript, `package`, or `module` of its user's code."""
    if config.runtime == _MODULE:
        return "module"
    return "package" if config.platform == _PACKAGES else "archive"


# --- packages of torch.export and AOTInductor: whether they run here, and whether a configuration fits their tensors
#
# AOTInductor checks nothing of what it is given: an input of another datatype or shape would be read beyond its end.
# It makes machine code, of which an instruction that this processor lacks would end the process.
# Source: PyTorch's torch/_export/serde/schema.py, and the text of the code that AOTInductor generates and keeps beside
# its library.

# The names of PyTorch's instruction sets that are not the processor's own names in capitals.
_FLAGS = {"AVX512": "avx512f"}
_CPU_INFO = Path("/proc/cpuinfo")


def check_package(path: Path, model: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            listed = [each for each in archive.infolist() if each.filename.endswith("_metadata.json")]
            metadata = [json.loads(archive.read(each)) for each in listed if each.file_size <= _AT_MOST]
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile) as exc:
        raise ModelLoadFailed(
            f"failed to load model '{model}': '{path.name}' is not a package of torch.export or AOTInductor: {exc}",
            hint=content_hint(path)
            or "compare the file with the original, or write it anew with torch.export.save or "
            "torch._inductor.aoti_compile_and_package",
        ) from exc
    if not any(name.endswith("archive_format") for name in names):
        raise ModelLoadFailed(
            f"failed to load model '{model}': '{path.name}' is not a package of torch.export or AOTInductor",
            hint="a TorchScript archive is called model.pt; a pickle of torch.save is never loaded",
        )
    flags: set[str] = set()  # empty where the system does not list them as x86 does
    with suppress(OSError):
        lines = _CPU_INFO.read_text().splitlines()
        flags = {flag for line in lines if line.startswith("flags") for flag in line.partition(":")[2].split()}
    for entry in (entry for entry in metadata if isinstance(entry, dict)):
        machine = str(entry.get("AOTI_MACHINE", platform.machine()))
        needed = [_FLAGS.get(name, name.lower()) for name in str(entry.get("AOTI_CPU_ISA", "")).split()]
        missing = [name for name in needed if name not in flags] if flags else []
        if machine != platform.machine():
            missing = [machine]
        if missing:
            raise ModelLoadFailed(
                f"failed to load model '{model}': '{path.name}' was compiled for a processor with "
                f"{', '.join(missing)}, which this one has not",
                hint="compile the package on a machine like this one",
            )


# Text, of which no model needs more.
_AT_MOST = 64 << 20
# The numbers of torch.export's ScalarType.
_EXPORTED = {1: "UINT8", 2: "INT8", 3: "INT16", 4: "INT32", 5: "INT64", 6: "FP16", 7: "FP32", 8: "FP64", 12: "BOOL"}
_SPECS = re.compile(r'\b(in|out)_spec_ = R"\((.{1,100000}?)\)";', re.DOTALL)
_CHECK = re.compile(r"static void check_input_(\d{1,5})\((.*?)\n}\n", re.DOTALL)
_DATATYPE = re.compile(r"_expected_dtype = aoti_torch_dtype_(\w{1,20})\(\)")
_FIXED = re.compile(r"\((\d{1,18}) != \w+_size\[(\d{1,3})\]\)")
_LARGEST = re.compile(r"_size\[(\d{1,3})\] > (\d{1,18})\)")
_DIMENSION = re.compile(r"_(?:size|stride)\[(\d{1,3})\]")


# The field of each tensor of a configuration, and what it says of it.
_Entries = list[tuple[str, ModelInput | ModelOutput]]


@dataclass(frozen=True, slots=True)
class PackageTensor:
    """`datatype` is "" if it is not served. A variable dimension is -1; `largest` are the bounds of such ones."""

    datatype: str
    dims: tuple[int, ...]
    largest: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class PackageTensors:
    """The numbers of the leaves of arguments and results, by their names, and what is known of each leaf."""

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    arguments: Sequence[str]
    of_inputs: Mapping[int, PackageTensor]
    of_outputs: Mapping[int, PackageTensor]

    def problems(self, config: ModelConfig) -> Iterator[Problem]:
        """Every contradiction between a complete `config` and the package."""
        unable = f"unable to load model '{config.name}', "
        inputs, outputs = _entries(config)
        if len(inputs) != len(self.inputs):
            text = f"{unable}configuration expects {len(inputs)} inputs, model provides {len(self.inputs)}"
            yield Problem("input", text, f"the inputs of the model are: {', '.join(self.inputs)}")
            return
        sides: list[tuple[str, _Entries, Any, Any, Any]] = [
            ("input", inputs, self.inputs, self.of_inputs, self.arguments),
            ("output", outputs, self.outputs, self.of_outputs, ()),
        ]
        for side, entries, leaves, tensors, arguments in sides:
            for path, entry in entries:
                try:
                    (number,) = places([entry.name], leaves, arguments).values()
                except KeyError:
                    text = f"unexpected inference {side} '{entry.name}' for model '{config.name}'"
                    yield Problem(f"{path}.name", text, f"the {side}s of the model are: {', '.join(leaves)}")
                    continue
                if number in tensors:
                    yield from _tensor_problems(config, entry, tensors[number], path, side)


def tensors_of(path: Path) -> PackageTensors | None:
    """The tensors of the package at `path`; None if it does not describe them in a way that is known here."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.file_size > _AT_MOST:
                continue
            try:
                if entry.filename.endswith("/models/model.json"):
                    return _of_program(json.loads(archive.read(entry)))
                if entry.filename.endswith(".wrapper.cpp"):
                    text = archive.read(entry).decode()
                    specs = dict(_SPECS.findall(text))
                    found = {int(number): _compiled(body) for number, body in _CHECK.findall(text)}
                    return PackageTensors(*_leaves(specs["in"], specs["out"]), (), found, {})
            except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
                return None
    return None


def _entries(config: ModelConfig) -> tuple[_Entries, _Entries]:
    """The inputs and outputs of a model with those that its sequences add, each with its field."""
    inputs: _Entries = [(f"input[{index}]", entry) for index, entry in enumerate(config.input)]
    outputs: _Entries = [(f"output[{index}]", entry) for index, entry in enumerate(config.output)]
    sequence = resolve_sequence_spec(config)
    if sequence is None:
        return inputs, outputs

    def entry(name: str, datatype: Datatype, dims: Sequence[int]) -> ModelInput:
        return ModelInput(name=name, data_type=data_type_of(datatype), dims=dims)

    for control in (sequence.start, sequence.end, sequence.ready, sequence.correlation_id):
        if control is not None:
            inputs.append(("sequence_batching.control_input", entry(control.name, control.datatype, [1])))
    known = {each.name for _, each in outputs}
    for state in sequence.states:
        inputs.append(("sequence_batching.state", entry(state.input_name, state.datatype, state.dims)))
        if state.output_name not in known:
            outputs.append(("sequence_batching.state", entry(state.output_name, state.datatype, state.dims)))
    return inputs, outputs


def _of_program(document: Any) -> PackageTensors:
    module = document["graph_module"]
    values = module["graph"]["tensor_values"]
    call = module["module_call_graph"][0]["signature"]
    ranges = {name: bounds.get("max_val") for name, bounds in document["range_constraints"].items()}

    def tensors(specs: Any, kind: str) -> dict[int, PackageTensor]:
        """By number. Of one that is not a tensor, such as a number, nothing is known."""
        names = [spec[kind]["arg"].get("as_tensor", {}).get("name") for spec in specs if kind in spec]
        return {number: _exported(values[name], ranges) for number, name in enumerate(names) if name in values}

    signature = module["signature"]
    return PackageTensors(
        *_leaves(call["in_spec"], call["out_spec"]),
        [str(name) for name in call.get("forward_arg_names") or ()],
        tensors(signature["input_specs"], "user_input"),
        tensors(signature["output_specs"], "user_output"),
    )


def _exported(value: Any, ranges: Mapping[str, int | None]) -> PackageTensor:
    dims, largest = [], {}
    for index, size in enumerate(value["sizes"]):
        dims.append(int(size.get("as_int", -1)))
        symbol = re.match(r"Symbol\('(\w+)'", size.get("as_expr", {}).get("expr_str", ""))
        bound = ranges.get(symbol[1]) if symbol else None
        if bound is not None:
            largest[index] = int(bound)
    return PackageTensor(_EXPORTED.get(value["dtype"], ""), tuple(dims), largest)


def _compiled(body: str) -> PackageTensor:
    fixed = {int(index): int(size) for size, index in _FIXED.findall(body)}
    rank = max((int(index) + 1 for index in _DIMENSION.findall(body)), default=0)
    datatype = _DATATYPE.search(body)
    return PackageTensor(
        DATATYPES.get(f"torch.{datatype[1]}", "") if datatype else "",
        tuple(fixed.get(index, -1) for index in range(rank)),
        {int(index): int(size) for index, size in _LARGEST.findall(body)},
    )


def _leaves(in_spec: str, out_spec: str) -> tuple[dict[str, int], dict[str, int]]:
    """The names of the leaves of arguments and results, and their numbers, as the process of the model makes them."""
    args, kwargs = _numbered(in_spec)
    inputs = {**named_leaves(list(args), "ARGS"), **named_leaves(kwargs, "KWARGS")}
    return inputs, named_leaves(_numbered(out_spec), "RESULT")


def _numbered(spec: str) -> Any:
    """The structure that PyTorch has written as text, with the numbers of its leaves."""
    numbers = count()

    def tree(node: Any) -> Any:
        if node["type"] is None:
            return next(numbers)
        parts = [tree(part) for part in node["children_spec"]]
        if node["type"] in ("builtins.tuple", "builtins.list"):
            return parts
        if node["type"] == "builtins.dict":
            return dict(zip(json.loads(node["context"]), parts, strict=True))
        raise ValueError(node["type"])

    return tree(json.loads(spec)[1])


def _tensor_problems(
    config: ModelConfig, entry: ModelInput | ModelOutput, tensor: PackageTensor, path: str, side: str
) -> Iterator[Problem]:
    unable = f"unable to load model '{config.name}', "
    wanted = datatype_of(entry.data_type)
    if wanted is None or wanted.name != tensor.datatype:
        given = f"TYPE_{tensor.datatype}" if tensor.datatype else "a datatype that is not served"
        text = f"{unable}the {side} '{entry.name}' of the package has {given}"
        yield Problem(f"{path}.data_type", text, f"set data_type: {given}" if tensor.datatype else "")
    batching = config.max_batch_size > 0
    dims = (-1, *model_dims(entry)) if batching else model_dims(entry)
    text = f"{unable}the {side} '{entry.name}' of the package has shape {shape_text(tensor.dims)}"
    if batching and tensor.dims and tensor.dims[0] != -1 and not tensor.dims[0] == config.max_batch_size == 1:
        yield Problem("max_batch_size", text, _NO_BATCH)
    elif batching and side == "input" and tensor.largest.get(0, config.max_batch_size) < config.max_batch_size:
        largest = tensor.largest[0]
        yield Problem("max_batch_size", f"{text} with at most {largest} rows", f"set max_batch_size: {largest}")
    rest = range(int(batching), max(len(dims), len(tensor.dims)))
    if len(dims) != len(tensor.dims) or any(tensor.dims[at] not in (-1, dims[at]) for at in rest):
        hint = f"set dims: {list(tensor.dims[int(batching) :])}"
        yield Problem(f"{path}.dims", text, hint)


_NO_BATCH = "export the model with a variable first dimension (dynamic_shapes), or set max_batch_size to 0"


# --- archives of TorchScript: the configuration, the parameters, the arguments of `forward`, and the file

_SERVED = {*DATATYPES.values(), BYTES.name}


def check_script(config: ModelConfig) -> None:
    TorchSettings.read(config)
    sides: list[tuple[str, list[ModelInput | ModelOutput]]] = [
        ("input", [*config.input]),
        ("output", [*config.output]),
    ]
    for side, entries in sides:
        if not entries:
            raise BackendFailed(
                f"model configuration must contain at least one {side}, none were specified.",
                hint="a TorchScript archive does not say what its tensors are: write them into config.pbtxt",
                field=side,
            )
        for index, entry in enumerate(entries):
            datatype = datatype_of(entry.data_type)
            if datatype is None or datatype.name not in _SERVED:
                name = datatype.config_name if datatype else "TYPE_INVALID"
                raise BackendFailed(
                    f"unsupported datatype {name} for {side} '{entry.name}' for model '{config.name}'",
                    field=f"{side}[{index}].data_type",
                )
            if datatype is BYTES and len(model_dims(entry)) + (config.max_batch_size > 0) != 1:
                raise BackendFailed(
                    f"Triton only supports 1 dimensional List of String as {side} for '{entry.name}' for model "
                    f"'{config.name}'",
                    hint="with batching: dims: [ 1 ] reshape { shape: [ ] }",
                    field=f"{side}[{index}].dims",
                )
    check_controls(config)


_THREADS = "INTRA_OP_THREAD_COUNT"


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """`threads` is 0 where the thread plan decides. The last three are None where PyTorch's default stays."""

    optimizes: bool
    uses_inference_mode: bool
    uses_cudnn: bool
    empties_cache: bool
    shares_weights: bool
    threads: int
    executor: bool | None
    profiling: bool | None
    fuser: bool | None

    @classmethod
    def read(cls, config: ModelConfig) -> TorchSettings:
        given = parameters_of(config)

        def choice(name: str) -> bool | None:
            return boolean(given[name], field_of(name)) if name in given else None

        def is_on(name: str) -> bool:
            return bool(choice(name))

        return cls(
            optimizes=not is_on("DISABLE_OPTIMIZED_EXECUTION"),
            uses_inference_mode=choice("INFERENCE_MODE") is not False,
            uses_cudnn=not is_on("DISABLE_CUDNN"),
            empties_cache=is_on("ENABLE_CACHE_CLEANING"),
            shares_weights=is_on("ENABLE_WEIGHT_SHARING"),
            threads=max(0, integer(given.get(_THREADS, "0"), field_of(_THREADS))),
            executor=choice("ENABLE_JIT_EXECUTOR"),
            profiling=choice("ENABLE_JIT_PROFILING"),
            fuser=choice("ENABLE_TENSOR_FUSER"),
        )

    def log(self, config: ModelConfig) -> None:
        """Say how a model with parameters runs, in Triton's words."""
        if not config.parameters:
            return
        for name, is_on in (
            ("Optimized execution", self.optimizes),
            ("Cache Cleaning", self.empties_cache),
            ("Inference Mode", self.uses_inference_mode),
            ("cuDNN", self.uses_cudnn),
        ):
            _log.info("%s is %s for model instance '%s'", name, "enabled" if is_on else "disabled", config.name)


def input_positions(names: Sequence[str], arguments: Sequence[str], model: str) -> dict[str, int]:
    """The position of each input among the arguments of `forward`: by their names, their indices, or their order.

    `names` are all that the model is given, in the order of the configuration; `arguments` leaves out `self`.
    """
    if all(name in arguments for name in names):
        return {name: arguments.index(name) for name in names}
    return _by_index_or_order(
        names,
        f"input '%s' or previous input(s) are neither an input argument to the model '{model}' nor do they follow the "
        "<name>__<index> naming convention. Falling back to enforcing strict ordering from model configuration.",
    )


def output_positions(names: Sequence[str], model: str) -> dict[str, int]:
    """The position of each output among the results: by their indices, or their order."""
    return _by_index_or_order(
        names,
        f"output '%s' or previous output(s) of the model '{model}' do not follow the <name>__<index> naming "
        "convention. Falling back to enforcing strict ordering from model configuration.",
    )


def check_controls(config: ModelConfig) -> None:
    batching = config.sequence_batching
    for control in batching.control_input:
        if index_of(control.name) is None:
            raise _wrong(
                f"input '{control.name}' does not follow <name>__<index> naming convention.", config, "control_input"
            )
    if not batching.state:
        return
    beginning = f"PyTorch model '{config.name}' is using sequence batching with state but "
    if any(index_of(entry.name) is None for entries in (config.input, config.output) for entry in entries):
        raise _wrong(
            f"{beginning}not all inputs and outputs follow the <name>__<index> naming convention. ", config, "state"
        )
    for state in batching.state:
        for name in (state.input_name, state.output_name):
            if index_of(name) is None:
                raise _wrong(
                    f"{beginning}state '{name}' does not follow the <name>__<index> naming convention. ",
                    config,
                    "state",
                )


def _by_index_or_order(names: Sequence[str], warning: str) -> dict[str, int]:
    indices: list[int | None] = [index_of(name) for name in names]
    if None not in indices:
        return {name: index for name, index in zip(names, indices, strict=True) if index is not None}
    wrong = names[indices.index(None)]
    if "__" in wrong:
        _log.warning(warning, wrong)
    return {name: position for position, name in enumerate(names)}


def _wrong(message: str, config: ModelConfig, field: str) -> BackendFailed:
    return BackendFailed(message, field=f"sequence_batching.{field}")


_SCRIPT_IT = "save the model with torch.jit.script(model).save(PATH) or torch.jit.trace(model, example).save(PATH)"


def module_path(version: Path, config: ModelConfig) -> Path:
    """The file in the directory of a version. Raises RepositoryUnavailable with Triton's text."""
    return path_of_model(version, config, config.default_model_filename or "model.pt")


def check_archive(path: Path, model: str) -> None:
    """Raise ModelLoadFailed unless the file is a TorchScript archive. Reads its table of contents, runs nothing."""
    origin = origin_of(path)
    if origin == TORCH_SCRIPT:
        return
    text, hint = "the file is not a TorchScript archive", content_hint(path)
    if origin == TORCH_SAVE:
        text = "the file is a pickle that torch.save has written, which could run any code when it is loaded"
        hint = _SCRIPT_IT
    elif origin == TORCH_EXPORT:
        hint = 'rename it to model.pt2 and set platform: "torch_aoti"'
    elif origin == PICKLE:
        hint = f"the file is a pickle, which could run any code when it is loaded: {_SCRIPT_IT}"
    elif not hint and start_of(path, 2) == b"PK" and not zipfile.is_zipfile(path):
        hint = "the archive is incomplete, because its table of contents is missing: copy the file again"
    elif not hint:
        hint = f"compare the file{written_by(path)} with the original; or {_SCRIPT_IT}"
    raise ModelLoadFailed(f"failed to load model '{model}': {text}", hint=hint)
