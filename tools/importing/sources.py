"""The sources that `trident import` recognises, each with the model that it becomes.

A source is told by what its files say, not by what runs it; nothing here runs any of it. What has to be run, such as a
conversion or a pickle, runs in a process of its own (original.py).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.text_format import MessageToString

from trident.core.backends.fil import DEFAULT_FILES, INPUT, TreeSettings, read_trees
from trident.core.backends.model_files import content_hint, origin_of, parameters_of, start_of
from trident.core.backends.pytorch.backend import tensors_of
from trident.core.backends.tensorflow import operations_in, operations_in_graph
from trident.core.config.platforms import is_hub_folder
from trident.core.config.problem import path_inside, read_file
from trident.core.config.schema import ModelConfig, ModelInput
from trident.core.errors import InvalidRequest, ServerError
from trident.core.inference.tensors import Shape
from trident.core.observability.log import say
from trident.core.repository.config import read_config
from trident.core.repository.layout_hints import EXPORTS
from trident.core.repository.layouts import FolderShape, can_be_model, folder_shape
from trident.core.repository.repository import CONFIG_FILE, ModelDirectory, is_passed_over
from trident.tools.pickles import scan_pickles

MODELS = Path(__file__).parent / "stub"
_ORIGINAL = Path(__file__).parent / "original.py"
_READ = 64 << 10
_MAX_BATCH_SIZE = 64
_TREES_BATCH_SIZE = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`inputs` are the datatypes and shapes that a person has named, in the order of the arguments; `python` is the
    interpreter that has the source's framework; `scratch` is a folder for what is converted. `runs`: the model is
    loaded here when it is made."""

    scratch: Path
    python: str
    trust_pickle: bool = False
    runs: bool = True
    inputs: tuple[tuple[str, Shape], ...] = ()


@dataclass(frozen=True, slots=True)
class Decisions:
    """`thresholds` are features and numbers at which a model divides them. `known` are by input the categories or texts
    that it knows of each column, none where it takes any number. `usual` are by input the mean and the spread of each
    column's numbers."""

    thresholds: Sequence[tuple[int, float]] = ()
    known: Mapping[str, Sequence[Sequence[Any]]] = field(default_factory=dict)
    usual: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A model to make. `files` are paths in its folder and what is copied there; `texts` are written.

    `original` is the answer of original.py that the model has to give too, and `original_file` what it is asked of;
    `is_small_batched`: it batches only as far as a model without a configuration does. `body` is why no request can be
    made up for it; then it is loaded, and not asked. `decisions` are read when it is loaded. `instead` gives the model
    to make if this one, a conversion, does not load or answers otherwise.
    """

    what: str
    files: Mapping[str, Path] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    original: str = ""
    original_file: Path | None = None
    name: str = ""
    is_small_batched: bool = False
    body: str = ""
    decisions: Callable[[], Decisions] = lambda: Decisions()
    instead: Callable[[], Plan] | None = None


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A row: what it is called, how it is told, and the model that it becomes."""

    name: str
    is_it: Callable[[Path], bool]
    plan: Callable[[Path, Options], Plan]


def recognise(path: Path) -> SourceKind | None:
    """The row of the table that a file or folder belongs to."""
    if not path.is_file() and not path.is_dir():
        return None  # a pipe or device has no end
    return next((row for row in SOURCES if row.is_it(path)), None)


def plans_of(path: Path, options: Options) -> list[Plan]:
    """The model in `path`, or those of a repository. Raises InvalidRequest, and ServerError for what fails."""
    if not path.exists():
        raise InvalidRequest(f"{path} does not exist", hint="name a file, a folder, s3://…, gs://… or as://…")
    if not path.is_file() and not path.is_dir():
        raise InvalidRequest(f"{path} is neither a file nor a folder")
    if is_repository(path):
        names = [each.name for each in sorted(path.iterdir()) if each.is_dir() and not is_passed_over(each.name)]
        models = [name for name in names if can_be_model(_listed(path / name))]
        return [_without_links_out(replace(_triton(path / name, options), name=name), path, options) for name in models]
    found = recognise(path)
    if found is None:
        raise _unknown(path)
    return [_without_links_out(found.plan(path, options), path, options)]


def _without_links_out(plan: Plan, path: Path, options: Options) -> Plan:
    """The plan. Raises InvalidRequest for a pipe or device, and without trust for links that lead elsewhere."""
    folder = path if path.is_dir() else path.parent
    # Where the cache of the Hugging Face Hub has the files of its folders.
    allowed = [os.path.realpath(each) for each in (folder, folder.parent.parent / "blobs", options.scratch, MODELS)]
    for source in plan.files.values():
        for each in (source, *source.rglob("*")):
            real = os.path.realpath(each)
            if each != path and not any(Path(real).is_relative_to(place) for place in allowed):
                check_trust(each, options, f"is a link to {real}, which is not in {folder}")
            if each != path and each.is_symlink() and each.is_dir():
                # A few of them may lead to each other without an end.
                check_trust(each, options, "is a link to a folder")
            if not each.is_file() and not each.is_dir():
                raise InvalidRequest(f"{each} is neither a file nor a folder", hint="leave it out of the source")
    return plan


def is_repository(path: Path) -> bool:
    """True for a folder with folders of models."""
    return path.is_dir() and recognise(path) is None and _has_models(path)


def _has_models(path: Path) -> bool:
    folders = [each for each in path.iterdir() if each.is_dir() and not is_passed_over(each.name)]
    return any(can_be_model(_listed(each)) for each in folders)


# Packages of the modules that sources need. A pickle names any other, whose name anybody may have taken on an index.
# Without joblib, which comes with it, scikit-learn is missing.
_PACKAGES = {
    **{each: each for each in ("catboost", "lightgbm", "onnx", "openvino", "pandas", "skops", "tensorflow", "torch")},
    **{"joblib": "scikit-learn", "sklearn": "scikit-learn", "xgboost": "xgboost"},
}


def run_original(options: Options, *arguments: str, given: object = None) -> Any:
    """Run original.py, and return its answer. Raises ServerError with the last line of its error."""
    run = subprocess.run(
        [options.python, str(_ORIGINAL), *arguments],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        errors="replace",
    )
    name = Path(arguments[1]).name
    last = (run.stderr.strip().splitlines() or [f"{options.python} ended with {run.returncode}"])[-1]
    if run.returncode < 0:
        killer = signal.Signals(-run.returncode)
        raise InvalidRequest(
            f"{options.python} was killed by {killer.name} while it read {name}",
            hint="it takes too much memory" if killer is signal.SIGKILL else "the file is probably damaged",
        )
    if missing := run.returncode and re.search(r"No module named '([\w.]+)'", last):
        package = _PACKAGES.get(missing[1].partition(".")[0])
        named = "name a Python that has it: --python=PATH"
        raise InvalidRequest(last, hint=f"install {package}, or {named}" if package else named)
    if run.returncode:
        raise InvalidRequest(f"{name} cannot be read: {last}")
    return json.loads(run.stdout.splitlines()[-1])


def _unknown(path: Path) -> InvalidRequest:
    kinds = ", ".join(row.name for row in SOURCES)
    if path.is_file():
        hint = content_hint(path) or EXPORTS.get(path.suffix.lower()) or _step(path)
        origin = origin_of(path)
        what = (
            f"{path.name} was written by {origin}, and is not a model"
            if origin
            else f"{path.name} is not a known model"
        )
        return InvalidRequest(what, hint=hint or f"these are recognised: {kinds}")
    names = sorted(each.name for each in path.iterdir())
    inside = [each for each in names if recognise(path / each)]
    if len(inside) > 1:
        return InvalidRequest(f"{path} has several models: {', '.join(inside)}", hint="name one of them")
    if "config.json" in names:
        return InvalidRequest(
            f"{path} is a folder of the Hugging Face Hub without an ONNX model and tokenizer.json",
            hint="export it: optimum-cli export onnx --model=FOLDER OUT writes model.onnx beside tokenizer.json",
        )
    export = next((hint for name in names if (hint := EXPORTS.get(Path(name).suffix.lower()))), None)
    shown = ", ".join(names[:5]) or "nothing"
    return InvalidRequest(f"{path} has {shown}, and no known model", hint=export or f"these are recognised: {kinds}")


def _step(path: Path) -> str | None:
    """What to do with a file that is not the model itself."""
    if path.suffix == ".py":
        return f"a Python model is a folder with its code in 1/model.py: `trident init {path.stem}` writes one"
    if path.suffix == ".pb":
        return "a frozen graph of TensorFlow is NAME/1/model.graphdef, with its tensors in NAME/config.pbtxt"
    if path.suffix == ".ipynb":
        return "save the model in the notebook, as ONNX if possible, and name that file"
    if zipfile.is_zipfile(path) or tarfile.is_tarfile(path):
        return "unpack it, and name the file or folder of the model"
    return None


def _listed(path: Path) -> list[str]:
    """The paths below a folder, two levels deep."""
    below = list(path.iterdir()) if path.is_dir() else []
    return [each.name for each in below] + [
        f"{each.name}/{inner.name}" for each in below if each.is_dir() for inner in each.iterdir()
    ]


def _is_folder_with(name: str) -> Callable[[Path], bool]:
    return lambda path: (path / name).is_file()


_MOST_TEXT = 64 << 20


def _content(path: Path) -> bytes:
    """A file that is a text. Raises InvalidRequest for one that cannot be read, or is too large for that."""
    try:
        return read_file(path, _MOST_TEXT)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error


def _file(name: str, path: Path) -> dict[str, Path]:
    return {f"1/{name}": path}


# --- Triton


def _is_triton(path: Path) -> bool:
    """A model with its versions, or its files beside its configuration."""
    if not path.is_dir() or path.name.isdecimal():
        return False
    names = _listed(path)
    return folder_shape(names) is FolderShape.MODEL and not is_hub_folder([each.name for each in path.iterdir()])


def _triton(path: Path, options: Options) -> Plan:
    if options.runs and (code := _code_of(path)):
        check_trust(path, options, f"has code of its author, which its load runs ({code})")
    return Plan(what="a model of a Triton repository", files={"": path}, name=path.name)


def _code_of(path: Path) -> str:
    """The code that the load of a Triton model would run besides a graph; "" without any."""
    config = ModelConfig()
    with suppress(ServerError):  # the check of the model says what is wrong
        config = read_config(ModelDirectory(path.name, path))
    given = parameters_of(config)
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    libraries = [
        *config.model_operations.op_library_filename,
        *(given[name] for name in _LIBRARIES & given.keys()),
        *(each.parameters[name] for each in accelerators for name in _LIBRARIES & each.parameters.keys()),
    ]
    if config.backend == "python" or config.runtime or libraries:
        return ", ".join(libraries) or f"{CONFIG_FILE}: {config.backend or config.runtime}"
    is_tensorflow = "tensorflow" in config.backend + config.platform
    for each in sorted(path.rglob("*")):
        name = each.relative_to(path).as_posix()
        if each.suffix.lower() in _CODE:
            return name
        if not each.is_file():
            continue
        # A file may be several of these.
        found = _code_in(each) if _may_be_archive(each) else ""
        if each.stem == "saved_model":
            found = found or _operations_on_files(each.parent)
        elif is_tensorflow or each.suffix == ".graphdef":
            found = found or _on_files(operations_in_graph(each))
        elif each.name == _GENAI:
            found = found or _genai_code(each)
        if found:
            return f"{name}: {found}"
    return ""


# The parameters of OpenVINO and of ONNX Runtime's TensorRT that name libraries to load.
_LIBRARIES = {"CPU_EXTENSION_PATH", "trt_extra_plugin_lib_paths"}


_GENAI = "genai_config.json"
# By which ONNX Runtime GenAI loads a library beside its graphs, and writes or reads files elsewhere.
_GENAI_OPTIONS = re.compile(r'"([^"]*(?:library|enable_profiling|run_profile|context_file_path|folder_path)[^"]*)"')


def _genai_code(path: Path) -> str:
    """The option of a genai_config.json that does more than a graph; "" without one."""
    try:
        # As pairs: of two members of one name Python would keep the last one only.
        text = json.dumps(json.loads(_content(path), object_pairs_hook=list)) if path.is_file() else ""
    except (ValueError, RecursionError):
        return ""
    found = _GENAI_OPTIONS.search(text)
    return found[1] if found else ""


def _hub(path: Path, options: Options) -> Plan:
    if found := _genai_code(path / _GENAI):
        check_trust(path, options, f"has a library of its author, or reads or writes files ({_GENAI}: {found})")
    return Plan(what="a model of the Hugging Face Hub", files={"1": path}, name=path.name)


# --- ONNX

# Of a message of protobuf.
_LARGEST_ONNX = 2 << 30


def _onnx(path: Path, options: Options) -> Plan:
    if (size := path.stat().st_size) >= _LARGEST_ONNX:
        raise InvalidRequest(
            f"{path.name} has {size} bytes, and an ONNX file has fewer than {_LARGEST_ONNX}",
            hint="a larger model has its weights in files beside it",
        )
    # The files that the graph names as those of its weights: they lie in its folder.
    graph = (start_of(path, 16 << 20) or b"") + _end_of(path, 16 << 20)
    others = [each for each in sorted(path.parent.iterdir()) if each != path and each.is_file()]
    named = [each for each in others if b"location" in graph and each.name.encode() in graph]
    beside = {f"1/{each.name}": each for each in named}
    return Plan(
        what="an ONNX model",
        files={**_file("model.onnx", path), **beside},
        original="onnx",
        original_file=path,
        is_small_batched=True,
    )


def _end_of(path: Path, size: int) -> bytes:
    """The last `size` bytes of a file, or fewer if it has no more."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read(size)


# --- PyTorch


def _torch(path: Path, options: Options, kind: str, what: str, file: str, head: str) -> Plan:
    """An archive that does not say its tensors: it is run to see them."""
    if code := _code_in(path):
        check_trust(path, options, f"has code of its author ({code})")
    inputs = [(datatype, [-1, *shape[1:]]) for datatype, shape in options.inputs] or None
    found = run_original(options, "tensors", str(path), given={"kind": kind, "inputs": inputs})
    if "failure" in found:
        tried = "the inputs that were named" if inputs else "what its weights suggest"
        raise InvalidRequest(
            f"{path.name} is {what}, which does not say what it takes, and it does not run on {tried}: "
            f"{found['failure']}",
            hint="name each argument of `forward` with the shape of one request: --input=FP32:1,3,224,224",
        )
    sides = {"input": found["inputs"], "output": found["outputs"]}
    entries = [
        (side, f"{side.upper()}__{number}", datatype, dims)
        for side, tensors in sides.items()
        for number, (datatype, dims) in enumerate(tensors)
    ]
    guessed = "" if inputs else ", guessed from its weights: --input=FP32:1,3,224,224 names another"
    shown = "; ".join(f"{name} {datatype} {dims}" for side, name, datatype, dims in entries if side == "input")
    return Plan(
        what=what,
        files=_file(file, path),
        texts={CONFIG_FILE: _with_tensors(head, entries)},
        notes=(f"it takes {shown}{guessed}",),
        original=kind,
        original_file=path,
    )


def _with_tensors(head: str, entries: Sequence[tuple[str, str, str, Sequence[int]]], largest: int = 0) -> str:
    """A configuration; it batches if the first dimension of every tensor may vary."""
    batches = all(dims[:1] == [-1] for *_, dims in entries)
    lines = [head, f"max_batch_size: {largest or _MAX_BATCH_SIZE}\ndynamic_batching {{ }}"] if batches else [head]
    for side, name, datatype, dims in entries:
        shape = ", ".join(map(str, dims[1:] if batches else dims))
        # A tensor of one value a row has no other dimension.
        reshape = " reshape { shape: [ ] }" if not shape else ""
        kind = "STRING" if datatype == "BYTES" else datatype
        # The name is the source's, and may have quotes.
        named = MessageToString(ModelInput(name=name), as_one_line=True)
        lines.append(f"{side} {{ {named} data_type: TYPE_{kind} dims: [ {shape or 1} ]{reshape} }}")
    return "\n".join(lines) + "\n"


def _package(path: Path, options: Options) -> Plan:
    head = 'platform: "torch_aoti"'
    check_trust(path, options, _PACKAGE)
    tensors = tensors_of(path)
    what = "a package of torch.export"
    if tensors is None or len(tensors.of_outputs) < len(tensors.outputs):
        if tensors is not None and not options.inputs:
            known = [tensors.of_inputs[number] for number in tensors.inputs.values()]
            shapes = tuple((each.datatype, tuple(max(1, dim) for dim in each.dims)) for each in known)
            options = replace(options, inputs=shapes)
        return _torch(path, options, "package", "a package of AOTInductor", "model.pt2", head)
    sides = (("input", tensors.inputs, tensors.of_inputs), ("output", tensors.outputs, tensors.of_outputs))
    entries = [
        (side, name, known[number].datatype, list(known[number].dims))
        for side, leaves, known in sides
        for name, number in leaves.items()
    ]
    bounds = [each.largest[0] for each in tensors.of_inputs.values() if 0 in each.largest]
    return Plan(
        what=what,
        files=_file("model.pt2", path),
        texts={CONFIG_FILE: _with_tensors(head, entries, min([_MAX_BATCH_SIZE, *bounds]))},
        original="package",
        original_file=path,
    )


# It has pickles, shapes and guards as Python's text, names of any function, and compiled or C++ code.
_PACKAGE = "is a package of torch.export, of which PyTorch runs parts as Python or compiled code"
# What TorchScript calls to read and write files of this machine.
_CALLS = re.compile(rb"\b(?:from_file|save|read_file|write_file)\b")


def _code_in(path: Path) -> str:
    """The member of an archive of PyTorch that does more than compute: compiled code, or a call that reads or writes
    files; "" without one. Raises InvalidRequest for one that cannot be read here: PyTorch may read it all the same."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_table(archive, path)
            # PyTorch finds members in whatever case they are written, and one of two with the same name.
            members = [(each.orig_filename.lower(), each) for each in archive.infolist()]
            for name, each in members:
                if name.endswith(_CODE[1:]):
                    return each.filename
                if name.endswith("archive_format"):
                    return _PACKAGE
                # It takes a name to end before a NUL.
                is_text = name.endswith(".py") or ("/code/" in name and "." not in name.rpartition("/")[2])
                if is_text and (call := _CALLS.search(member_of(archive, each))):
                    return f"{each.filename}: {call[0].decode()}"
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise InvalidRequest(f"{path.name} is an archive that cannot be read: {error}") from error
    return ""


def _check_table(archive: zipfile.ZipFile, path: Path) -> None:
    """Raise BadZipFile unless the table of contents is where the end of the archive says, with nothing after that.
    PyTorch looks there, and Python just before the end, where another table may be."""
    size = _ENDS + len(archive.comment)
    ends, at = _end_of(path, size).rjust(size, b"\0"), path.stat().st_size - size
    signature, offset, comment = struct.unpack("<4s12xLH", ends[76:98])
    is_there = signature == b"PK\5\6" and comment == len(archive.comment)
    if ends[56:60] == b"PK\6\7":  # of a large archive
        is_there &= ends[:4] == b"PK\6\6" and struct.unpack("<Q", ends[64:72])[0] == at
        (offset,) = struct.unpack("<Q", ends[48:56])
    if not is_there or offset != archive.start_dir:
        raise zipfile.BadZipFile("its table of contents is not where its end says")


# The bytes of the ends that PyTorch writes: a large archive's record (56), where that is (20), and the small one (22).
_ENDS = 98


def _may_be_archive(path: Path) -> bool:
    """True for a file that PyTorch may read as an archive, even if Python does not."""
    return b"PK\5\6" in _end_of(path, (1 << 16) + _ENDS)


def member_of(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """A member that is a text. Raises InvalidRequest before memory is taken for one that is too large for that."""
    if member.file_size > _MOST_TEXT:
        raise InvalidRequest(
            f"{member.filename} in {Path(archive.filename or '').name} has {member.file_size} bytes, and may have "
            f"{_MOST_TEXT}"
        )
    return archive.read(member)


# --- TensorFlow, OpenVINO, TensorRT

# By which a graph reads and writes files of this machine, calls Python, or other machines.
_OPERATIONS = re.compile(
    r"ReadFile|WriteFile|MatchingFiles|PyFunc|Debug|PrintV2|(?:Create|Write|Flush|Import)\w*(?:Summary|Event)|"
    r"(?:Cache|Save|Load|CSV|Sql)Dataset|Snapshot\w|DistributedSave|TFRecord|TextLine|FixedLengthRecord|LMDB|WholeFile|"
    r"DataService|Rpc|FileSystem|(?:De|En)codeProto|LoadAndRemap|GenerateVocab"
)


def _on_files(operations: Iterable[str]) -> str:
    return ", ".join(sorted(each for each in operations if _OPERATIONS.search(each)))


def _operations_on_files(folder: Path) -> str:
    """Return the operations on files of a SavedModel, or the files that TensorFlow may read instead; "" for none."""
    others = [name for name in ("saved_model.cpb", "saved_model.pbtxt") if (folder / name).exists()]
    return ", ".join(others) or _on_files(operations_in(folder / "saved_model.pb"))


def _savedmodel(path: Path, options: Options) -> Plan:
    if operations := _operations_on_files(path):
        check_trust(path, options, f"has a graph that reads or writes files, or calls Python ({operations})")
    return Plan(
        what="a SavedModel of TensorFlow",
        files=_file("model.savedmodel", path),
        texts={CONFIG_FILE: 'platform: "tensorflow_savedmodel"\ninstance_group { count: 1 }\n'},
        original="savedmodel",
        original_file=path,
    )


def _openvino(path: Path, options: Options) -> Plan:
    weights = path.with_suffix(".bin")
    if not weights.is_file():
        raise InvalidRequest(f"{path.name} is OpenVINO's, without its weights", hint=f"put {weights.name} beside it")
    return Plan(
        what=f"a model of {origin_of(path)}",
        files={**_file("model.xml", path), **_file("model.bin", weights)},
        original="openvino",
        original_file=path,
    )


# --- decision trees

_OBJECTIVE = re.compile(rb"(?:binary|multi|reg|rank|count|survival):[a-z]+")
_LIGHTGBM_OBJECTIVE = re.compile(rb"^objective=(binary|multiclass)", re.MULTILINE)
_CLASSES = (b"binary:", b"multi:")
# XGBoost's names of categories, in JSON and UBJSON, which Treelite does not read.
_ENCODED = re.compile(rb'enc(?:":\[\{|\[#L\0{6}(?!\0\0))')
# Treelite's types of nodes.
_NUMERICAL, _CATEGORICAL = 1, 2


def _type_of_trees(path: Path) -> str:
    """The `model_type`, or "" if the file has no trees."""
    origin = (origin_of(path) or "") if path.is_file() else ""
    if origin.startswith("XGBoost"):
        return "xgboost_json" if b'"version"' in _end_of(path, _READ) else "xgboost_ubj"
    if origin.startswith("LightGBM"):
        return "lightgbm"
    if path.is_file() and path.suffix == ".tl":
        return "treelite_checkpoint"
    # XGBoost's old binary format says nothing of itself.
    is_old = path.is_file() and path.suffix in (".bst", ".model", ".xgb") and not origin
    return "xgboost" if is_old and _OBJECTIVE.search(start_of(path, _READ) or b"") else ""


def _trees(path: Path, options: Options, missing: str = "nan") -> Plan:
    kind = _type_of_trees(path)
    file = path
    notes: tuple[str, ...] = ()
    original = "lightgbm" if kind == "lightgbm" else "xgboost"
    if kind == "lightgbm":
        has_classes = has_probabilities = bool(_LIGHTGBM_OBJECTIVE.search(start_of(path, _READ) or b""))
    elif kind == "treelite_checkpoint":
        has_classes = has_probabilities = False
        original, notes = "", ("it is taken for a regression: for classes set is_classifier and predict_proba",)
    else:
        text = _end_of(path, _READ) + (start_of(path, _READ) or b"")
        if b"gblinear" in text:
            return _by_library(path, original, "it has no trees, but is linear", options)
        match = _OBJECTIVE.search(text)
        objective = match[0] if match else b""
        has_classes = objective.startswith(_CLASSES) and objective != b"binary:logitraw"
        # These two answer the class itself.
        has_probabilities = has_classes and objective not in (b"multi:softmax", b"binary:hinge")
        is_encoded = bool(_ENCODED.search(text))
        if b"best_iteration" in text or is_encoded:
            made = run_original(options, "from_xgboost", str(path), str(options.scratch))
            kind, file = "xgboost_json", options.scratch / "xgboost.json"
            if made["rounds"]:
                notes = (f"it has the {made['rounds']} rounds up to the best one, of {made['of']}",)
            if is_encoded:
                notes += ("it takes categories by their codes: their places among those that it was trained with",)
    parameters = {"model_type": kind, "is_classifier": has_classes, "predict_proba": has_probabilities}
    if missing != "nan":
        parameters["missing"] = missing
    lines = [
        f'  {{ key: "{key}" value {{ string_value: "{str(value).lower()}" }} }}' for key, value in parameters.items()
    ]
    config = f'backend: "fil"\nmax_batch_size: {_TREES_BATCH_SIZE}\ndynamic_batching {{ }}\nparameters [\n'
    return Plan(
        what=f"trees of {origin_of(path) or 'Treelite' if kind != 'xgboost' else 'an old XGBoost'}",
        files=_file(DEFAULT_FILES[kind], file),
        texts={CONFIG_FILE: config + ",\n".join(lines) + "\n]\n"},
        notes=notes,
        original=original,
        original_file=path,
        decisions=lambda: _decisions(kind, file),
        instead=partial(_by_library, path, original, "not as trees", options)
        if original and missing == "nan"
        else None,
    )


def _decisions(kind: str, path: Path) -> Decisions:
    """Of trees, as Treelite has read them."""
    settings = TreeSettings(kind, False, False, 0.5, 1, True)
    trees = read_trees(path, settings, path.name)
    thresholds: set[tuple[int, float]] = set()
    categories: dict[int, set[int]] = {}
    for number in range(trees.num_tree):
        tree = trees.get_tree_accessor(number)
        fields = [tree.get_field(name).tolist() for name in ("node_type", "split_index", "threshold")]
        lists = [tree.get_field(f"category_list{name}").tolist() for name in ("_begin", "_end", "")]
        for node, (node_type, feature, threshold) in enumerate(zip(*fields, strict=True)):
            if node_type == _NUMERICAL:
                thresholds.add((feature, threshold))
            elif node_type == _CATEGORICAL:
                categories.setdefault(feature, set()).update(lists[2][lists[0][node] : lists[1][node]])
    # Those that no list has go the other way.
    known: list[Sequence[int]] = [()] * (max(categories, default=-1) + 1)
    for feature, each in categories.items():
        known[feature] = sorted(each | {max(each) + 1, 0}) if each else ()
    return Decisions(sorted(thresholds), {INPUT: known})


def _catboost(path: Path, options: Options) -> Plan:
    made = run_original(options, "from_catboost", str(path), str(options.scratch))
    if "failure" in made:
        return _by_library(path, "catboost", made["failure"], options)
    plan = _onnx(options.scratch / "model.onnx", options)
    return replace(
        plan,
        what=f"a model of {made['what']}, exported as ONNX",
        original="catboost",
        original_file=path,
        decisions=lambda: _told(made),
        instead=partial(_by_library, path, "catboost", "its ONNX answers otherwise", options),
    )


def _by_library(path: Path, library: str, reason: str, options: Options) -> Plan:
    """A Python model that asks the library that wrote a file. Such files are data: reading them runs nothing."""
    made = run_original(options, "from_library", str(path), str(options.scratch), given=library)
    if "failure" in made:
        raise InvalidRequest(f"{path.name} cannot be served: {reason}, and {made['failure']}")
    suffixes = {"catboost": "cbm", "lightgbm": "txt", "xgboost": "ubj"}
    suffix = "json" if _type_of_trees(path) == "xgboost_json" else suffixes[library]
    return _python(path, {**made, "reason": reason}, f"model.{suffix}", library)


def _told(made: Mapping[str, Any]) -> Decisions:
    """Return the decisions that a conversion has reported."""
    known = {each["name"]: each["known"] for each in made.get("inputs", [])}
    usual = {each["name"]: each["usual"] for each in made.get("inputs", [])}
    return Decisions([(feature, number) for feature, number in made["thresholds"]], known, usual)


# --- pickles: scikit-learn, and the classes that XGBoost, LightGBM and CatBoost have for it


def _is_pickle(path: Path) -> bool:
    if not path.is_file():
        return False
    if path.suffix in (".joblib", ".pkl", ".pickle"):
        return True
    return origin_of(path) == "Python's pickle" or (path.suffix == ".skops" and zipfile.is_zipfile(path))


def check_trust(path: Path, options: Options, why: str) -> None:
    """Raise InvalidRequest unless the source is trusted. Of a trusted one, print what its pickles call."""
    if options.trust_pickle:
        for each in scan_pickles(path):
            say(f"{'warning: ' if each.is_dangerous else ''}{each.path.name}: {each.found}")
    else:
        raise InvalidRequest(
            f"{path.name} {why}: who wrote it decides what runs here, with your rights",
            hint="if you trust its author, --trust-pickle runs it in a process of its own",
        )


def _pickle(path: Path, options: Options) -> Plan:
    check_trust(path, options, "is a pickle, which is a program that runs when it is read")
    asked = [(datatype, shape[-1]) for datatype, shape in options.inputs]
    made = run_original(options, "from_pickle", str(path), str(options.scratch), given={"inputs": asked})
    if "saved" in made:
        return _by_library(options.scratch / made["saved"], "catboost", made["failure"], options)
    if "failure" in made:
        raise InvalidRequest(f"{path.name} cannot be served: {made['failure']}")
    file = options.scratch / ("model.onnx" if made["made"] == "onnx" else made["made"])
    if made["made"] not in ("onnx", "pickled"):
        trees = _trees(file, options, made.get("missing") or "nan")
        plan = replace(trees, original="boosted", original_file=path)
        return replace(plan, what=f"a {made['what']}, saved as trees")
    if made["made"] != "onnx":
        return _python(path, made, "model.pickle", "pickled")
    return replace(
        _onnx(file, options),
        what=f"a {made['what']}, converted to ONNX",
        original="pickled",
        original_file=path,
        decisions=lambda: _told(made),
        instead=partial(_python, path, made, "model.pickle", "pickled") if "outputs" in made else None,
    )


def _python(path: Path, made: Mapping[str, Any], file: str, original: str) -> Plan:
    """A Python model that reads the source with its own library."""
    reason = made.get("reason", "the conversion answers otherwise")
    entries = [("input", each["name"], each["datatype"], [-1, each["width"]]) for each in made["inputs"]]
    entries += [("output", name, datatype, [-1, *([-1] * len(dims))]) for name, datatype, dims in made["outputs"]]
    needed = "\n".join(["numpy", *made["needs"], *(["pandas"] if made["table"]["names"] else [])])
    return Plan(
        what=f"a {made['what']}, as a Python model",
        files={**_file(file, path), **_file("model.py", MODELS / "estimator.py")},
        texts={
            CONFIG_FILE: _with_tensors('backend: "python"', entries),
            "requirements.txt": f"{needed}\n",
            "1/table.json": json.dumps(made["table"]),
        },
        notes=(
            f"it is not converted ({reason}): its process reads the file, in an environment with "
            + ", ".join(made["needs"]),
        ),
        original=original,
        original_file=path,
        decisions=lambda: _told(made),
    )


# --- folders around one model: MLflow, BentoML, KServe

_MLFLOW_FILES = ("onnx", "xgboost", "lightgbm", "catboost", "sklearn", "tensorflow")
_AROUND = {"model.yaml": "BentoML's model store", "model-settings.json": "a model folder of MLServer and KServe"}


def flat_yaml(text: str) -> dict[str, str]:
    """The plain values of a YAML document of nested maps, by their keys with dots between. The rest is passed over."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = re.fullmatch(r"( *)([\w.-]+):(?: +(.*))?", line)
        if match is None:
            continue
        depth, key, value = len(match[1]), match[2], (match[3] or "").strip()
        above = [each for each in above if each[0] < depth]
        path = ".".join([name for _, name in above] + [key])
        above.append((depth, key))
        if value:
            found[path] = value.strip("'\"")
    return found


def _mlflow(path: Path, options: Options) -> Plan:
    written = flat_yaml(_content(path / "MLmodel").decode(errors="replace"))
    flavors = {key.split(".")[1] for key in written if key.startswith("flavors.")}
    for flavor in _MLFLOW_FILES:
        inner = _file_of_flavor(path, flavor, written) if flavor in flavors else None
        row = recognise(inner) if inner else None
        if inner and row and not (row.name == _PICKLED and flavor == "tensorflow"):
            plan = row.plan(inner, options)
            return replace(plan, what=f"{plan.what}, from an MLflow folder", name=path.name)
    if "python_function" not in flavors:
        raise InvalidRequest(
            f"{path} is an MLflow folder of which no flavor is known: {', '.join(sorted(flavors)) or 'it has none'}",
            hint=f"log it with one of these: {', '.join(_MLFLOW_FILES)}, python_function",
        )
    check_trust(path, options, "is an MLflow folder whose python_function is code and pickles of its author")
    requirements = path / "requirements.txt"
    needed = _content(requirements).decode(errors="replace") if requirements.is_file() else "mlflow\n"
    python = written.get("flavors.python_function.python_version", "unknown")
    return Plan(
        what="an MLflow python_function, as a Python model",
        files={"1/mlflow": path, **_file("model.py", MODELS / "pyfunc.py")},
        texts={
            CONFIG_FILE: f'backend: "python"\nmax_batch_size: {_MAX_BATCH_SIZE}\ndynamic_batching {{ }}\n',
            "requirements.txt": needed.rstrip() + "\nnumpy\npandas\n",
        },
        notes=(
            "its python_function runs in an environment of its own, which the first load makes with pip",
            f"it was logged with Python {python}",
        ),
        name=path.name,
    )


def _file_of_flavor(path: Path, flavor: str, written: Mapping[str, str]) -> Path | None:
    """The model of a flavor; MLflow names it by other keys in some of them."""
    for key in ("data", "pickled_model", "saved_model_dir", "model_data"):
        inner = path_inside(path, written.get(f"flavors.{flavor}.{key}", "?"))
        if inner is None:
            raise InvalidRequest(f"{path / 'MLmodel'} names a file out of its folder: flavors.{flavor}.{key}")
        if inner.is_file():
            return inner
        for each in (inner / "model", inner):
            if each.is_dir() and recognise(each):
                return each
    return None


def _only_model(path: Path) -> Path | None:
    """The only model in a folder that is not a repository; None without one or with several."""
    if not path.is_dir() or _has_models(path):
        return None
    found = [each for each in sorted(path.iterdir()) if not each.name.startswith(".") and recognise(each)]
    return found[0] if len(found) == 1 else None


def _around(path: Path, options: Options) -> Plan:
    inner = _only_model(path)
    assert inner is not None
    plan = plans_of(inner, options)[0]
    around = next((text for name, text in _AROUND.items() if (path / name).is_file()), "a folder")
    what = f"{plan.what.removesuffix(', from a folder')}, from {around}"
    return replace(plan, what=what, name=path.name)


# --- TorchServe


def _is_archive(path: Path) -> bool:
    if path.is_file() and path.suffix == ".mar" and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return _MANIFEST in archive.namelist()
    return path.is_dir() and (path / _MANIFEST).is_file()


_MANIFEST = "MAR-INF/MANIFEST.json"
_HANDLERS = ("base_handler", "image_classifier")
_PORTED = {
    "image_segmenter": "the colours of its classes in `postprocess`",
    "object_detector": "the threshold and the names of its boxes in `postprocess`",
    "text_classifier": "the tokens and n-grams of `preprocess`",
}
_MOST_UNPACKED, _MOST_MEMBERS = 16 << 30, 10_000


# What Python or the system may run if it lies where modules are looked for.
_CODE = (".py", ".pyc", ".pyd", ".so", ".dll")


def _torchserve(path: Path, options: Options) -> Plan:
    folder = path
    if path.is_file():
        folder = options.scratch / "archive"
        try:
            with zipfile.ZipFile(path) as archive:
                if (count := len(archive.infolist())) > _MOST_MEMBERS:
                    raise InvalidRequest(f"{path.name} has {count} members, and may have {_MOST_MEMBERS}")
                most = min(_MOST_UNPACKED, shutil.disk_usage(options.scratch).free)
                if (size := sum(each.file_size for each in archive.infolist())) > most:
                    raise InvalidRequest(f"{path.name} would be unpacked to {size} bytes, and {most} are allowed")
                member_of(archive, archive.getinfo(_MANIFEST))
                # Members that would leave the folder are put inside it.
                archive.extractall(folder)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
            raise InvalidRequest(f"{path.name} is an archive that cannot be read: {error}") from error
    try:
        model = json.loads(_content(folder / _MANIFEST))["model"]
        handler = model["handler"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidRequest(
            f"{path.name} has a {_MANIFEST} without a model with its handler: {type(error).__name__}",
            hint="torch-model-archiver writes one",
        ) from error
    handler = str(handler).partition(":")[0].removesuffix(".py")
    if handler in _PORTED:
        raise InvalidRequest(
            f"{path.name} has TorchServe's handler {handler}, which is part of TorchServe",
            hint=f"import {model.get('serializedFile')} from it (a .mar is a zip file), and write {_PORTED[handler]} "
            "into a Python model: trident init NAME",
        )
    if handler not in _HANDLERS and not (folder / f"{handler}.py").is_file():
        raise InvalidRequest(f"{path.name} lacks its handler {handler}", hint="pack it again")
    names = sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file())
    serialized = model.get("serializedFile")
    code = [name for name in names if name.endswith(_CODE)]
    for name in names:
        if _may_be_archive(folder / name) and (found := _code_in(folder / name)):
            check_trust(path, options, f"has code of its author ({name}: {found})")
    notes = ["a request is what TorchServe took as a body, in the input data, and the answer its body as text"]
    files = {"1/archive": folder}
    if handler not in _HANDLERS or model.get("modelFile"):
        check_trust(path, options, f"has code of its author ({', '.join(code)})")
    elif code and not options.trust_pickle:
        # Its handler is TorchServe's: what else there is could only take the place of modules that it imports.
        wanted = [_MANIFEST, serialized, "index_to_name.json"]
        files = {f"1/archive/{name}": folder / name for name in wanted if name in names and name not in code}
        notes.append(f"code of its author is left out ({', '.join(code)}): --trust-pickle takes it")
    if serialized and serialized not in names:
        raise InvalidRequest(f"{path.name} lacks its file {serialized}", hint="pack it again")
    return Plan(
        what=f"a TorchServe archive with the handler {handler}, as a Python model",
        files={**files, **_file("model.py", MODELS / "torchserve.py")},
        texts={
            CONFIG_FILE: f'backend: "python"\nmax_batch_size: {_MAX_BATCH_SIZE}\ndynamic_batching {{ }}\n'
            'input { name: "data" data_type: TYPE_STRING dims: [ 1 ] }\n'
            'output { name: "prediction" data_type: TYPE_STRING dims: [ 1 ] }\n'
            "instance_group { count: 1 kind: KIND_CPU }\n"
        },
        notes=tuple(notes),
        body="it has loaded, and is not asked: only its handler knows what a body is",
        name=str(model.get("modelName", "")),
    )


_PICKLED = "pickle of scikit-learn, XGBoost, LightGBM or CatBoost (joblib, pkl, skops)"

SOURCES: Sequence[SourceKind] = (
    SourceKind("MLflow folder", _is_folder_with("MLmodel"), _mlflow),
    SourceKind("TorchServe archive (.mar)", _is_archive, _torchserve),
    SourceKind("SavedModel", _is_folder_with("saved_model.pb"), _savedmodel),
    SourceKind(
        "Hugging Face folder with an ONNX model",
        lambda path: path.is_dir() and is_hub_folder([each.name for each in path.iterdir()]),
        _hub,
    ),
    SourceKind("model of a Triton repository", _is_triton, _triton),
    SourceKind(
        "ONNX",
        lambda path: path.is_file() and path.suffix == ".onnx" and (start_of(path, 1) or b"")[:1] == b"\x08",
        _onnx,
    ),
    SourceKind(
        "TorchScript",
        lambda path: origin_of(path) == "PyTorch (TorchScript)",
        partial(
            _torch,
            kind="torchscript",
            what="a TorchScript archive",
            file="model.pt",
            head='platform: "pytorch_libtorch"',
        ),
    ),
    SourceKind(
        "torch.export or AOTInductor (.pt2)", lambda path: origin_of(path) == "PyTorch (torch.export)", _package
    ),
    SourceKind("OpenVINO IR", lambda path: path.is_file() and str(origin_of(path)).startswith("OpenVINO"), _openvino),
    SourceKind(
        "TensorRT plan",
        lambda path: str(origin_of(path)).startswith("TensorRT"),
        lambda path, _: Plan(what=f"a plan of {origin_of(path)}", files=_file("model.plan", path)),
    ),
    SourceKind("XGBoost, LightGBM or Treelite", lambda path: bool(_type_of_trees(path)), _trees),
    SourceKind("CatBoost", lambda path: path.is_file() and start_of(path, 4) == b"CBM1", _catboost),
    SourceKind(_PICKLED, _is_pickle, _pickle),
    SourceKind(
        "folder around one model (BentoML, KServe, MLServer)", lambda path: _only_model(path) is not None, _around
    ),
)
