"""The backend `fil`: decision trees (XGBoost, LightGBM, Treelite checkpoints) by Treelite, on the instance threads.

The name is that of Triton's Forest Inference Library backend. Source: docs/spec/framework-backends.md section 6.7.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import re
import tempfile
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.in_process import Failures, Framework, InProcessModel, Run, Runner
from trident.core.backends.model_files import (
    content_hint,
    field_of,
    integer,
    parameters_of,
    path_of_model,
    start_of,
    text_of,
    written_by,
)
from trident.core.backends.registry import check_installed, importing
from trident.core.config.placement import DeviceKind, Placement, placements
from trident.core.config.problem import ModelSignature, TensorSignature, open_file
from trident.core.config.schema import ModelConfig, datatype_of
from trident.core.errors import BackendFailed, ConfigInvalid, ModelLoadFailed, Unsupported
from trident.core.inference.tensors import BY_NAME, Array, element_count

_NAME, _FRAMEWORK = "fil", "treelite"

INPUT = "input__0"

_FP32 = BY_NAME["FP32"]
_OUTPUT = "output__0"
_SHAP = "treeshap_output"

DEFAULT_FILES: Mapping[str, str] = {
    "xgboost": "xgboost.model",
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}
"""The file of each model type, unless the configuration names another."""

_DEFAULT_THRESHOLD = 0.5


class FilBackend:
    """Implements Backend. Loader threads, several at once. It has no settings."""

    supports_gpus = False

    def __init__(self, settings: Mapping[str, str] | None = None) -> None: ...

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature | None:
        settings = TreeSettings.read(config)
        file = tree_path(path, config, settings)
        check_installed(_FRAMEWORK, _NAME, config.name)
        return signature_of(header_of(read_trees(file, settings, config.name)), settings)

    def check(self, config: ModelConfig) -> None:
        if any(placement.kind is DeviceKind.GPU for placement in placements(config)):
            raise Unsupported(
                "KIND_GPU cannot be used in CPU-only build",
                hint="set the kind of the instance group to KIND_CPU",
                field="instance_group",
            )
        TreeSettings.read(config)
        check_tensors(config)
        check_installed(_FRAMEWORK, _NAME, config.name)

    def load(self, context: LoadContext) -> BackendModel:
        config = context.config
        self.check(config)
        with importing(_NAME):
            import treelite
        settings = TreeSettings.read(config)
        path = tree_path(context.path, config, settings)
        (output,) = context.spec.outputs.values()
        width = element_count(tuple(dim for dim in output.dims if dim != -1))
        threads = settings.threads or context.threads or 1

        rules = rules_of(path, settings)

        def load(placement: Placement) -> Any:
            trees = read_trees(path, settings, config.name)
            check_trees(config, header_of(trees), settings, width)
            return trees

        def runner(trees: Any, placement: Placement) -> Runner:
            # How far a row goes in a tree differs with its values, but no further than the tree is deep.
            return Runner(run=run_of(trees, settings, rules, width, threads), may_run_inline=True)

        framework = Framework(
            load=load,
            runner=runner,
            failures=Failures((treelite.TreeliteError, ValueError), lambda exc, model: BackendFailed(str(exc))),
            provider=lambda trees: f"Treelite {treelite.__version__}",
            threads=str(threads),
        )
        return InProcessModel(context, framework)


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """`threads` is 0 where the thread plan decides. `allows_unknown_fields`: in XGBoost's JSON.

    `missing` is the number that counts as missing, as NaN does, which it is by default.
    """

    model_type: str
    is_classifier: bool
    predict_proba: bool
    threshold: float
    threads: int
    allows_unknown_fields: bool
    missing: float = math.nan

    @classmethod
    def read(cls, config: ModelConfig) -> TreeSettings:
        given = parameters_of(config)
        model_type = given.get("model_type", "xgboost")
        if model_type not in DEFAULT_FILES:
            raise Unsupported(
                f"{model_type} not recognized as a valid serialization format.",
                hint=f"set model_type to one of: {', '.join(DEFAULT_FILES)}",
                field=field_of("model_type"),
            )
        # The older name of the parameter, which configurations still have.
        name = "is_classifier" if "is_classifier" in given or "output_class" not in given else "output_class"
        if name not in given:
            raise ConfigInvalid(
                "Required parameter is_classifier not found in config",
                hint='parameters { key: "is_classifier" value { string_value: "true" } }, or "false" for a regression',
                field=field_of("is_classifier"),
            )
        return cls(
            model_type=model_type,
            is_classifier=_boolean(name, given[name]),
            predict_proba=_boolean("predict_proba", given.get("predict_proba", "false")),
            threshold=_number("threshold", given.get("threshold", str(_DEFAULT_THRESHOLD))),
            threads=max(0, integer(given.get("cpu_nthread", "-1"), field_of("cpu_nthread"))),
            allows_unknown_fields=_boolean(
                "xgboost_allow_unknown_field", given.get("xgboost_allow_unknown_field", "false")
            ),
            missing=_number("missing", given.get("missing", "nan")),
        )


def _boolean(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise _wrong(name, f"Expected 'true' or 'false' for parameter '{name}', got: '{text}'")
    return text == "true"


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _wrong(name, f"Bad input for parameter {name}", f"'{text}' is not a number") from None


def _wrong(name: str, message: str, hint: str | None = None) -> BackendFailed:
    return BackendFailed(message, hint=hint, field=field_of(name))


@dataclass(frozen=True, slots=True)
class TreeHeader:
    """`features` are the values of a row. `classes` is 1 for a regression and for two classes."""

    features: int
    classes: int
    targets: int


def signature_of(header: TreeHeader, settings: TreeSettings) -> ModelSignature:
    """One input of as many features as the trees know, one output. Triton requires both in the configuration."""
    return ModelSignature(
        (TensorSignature(INPUT, _FP32.name, (-1, header.features)),),
        (TensorSignature(_OUTPUT, _FP32.name, (-1, _width(header, settings))),),
    )


def check_tensors(config: ModelConfig) -> None:
    for side, entries, name in (("input", config.input, INPUT), ("output", config.output, _OUTPUT)):
        if any(entry.name == _SHAP for entry in entries):
            raise Unsupported(
                f"output '{_SHAP}' of model '{config.name}' cannot be computed: Treelite has no SHAP values",
                hint=f"remove the output '{_SHAP}'",
                field=side,
            )
        if [entry.name for entry in entries] != [name]:
            given = ", ".join(f"'{entry.name}'" for entry in entries) or "none"
            raise ConfigInvalid(
                f"model '{config.name}' must have the one {side} '{name}', but the configuration has {given}",
                field=side,
            )
        if datatype_of(entries[0].data_type) is not _FP32:
            datatype = datatype_of(entries[0].data_type)
            raise BackendFailed(
                f"incorrect type {datatype.name if datatype else 'INVALID'} for {side} with required type FP32",
                hint="set data_type: TYPE_FP32",
                field=f"{side}[0].data_type",
            )


def check_trees(config: ModelConfig, header: TreeHeader, settings: TreeSettings, width: int) -> None:
    """Raise a ServerError if the trees do not fit the configuration, whose output has `width` values a row.

    Treelite itself would read beyond a short row.
    """
    dims = tuple(config.input[0].reshape.shape) or tuple(config.input[0].dims)
    if not dims or dims[-1] != header.features:
        raise ConfigInvalid(
            f"unable to load model '{config.name}', the trees have {header.features} features, but input '{INPUT}' has "
            f"dims {list(dims)}",
            hint=f"set dims: [ {header.features} ]",
            field="input[0].dims",
        )
    if header.targets > 1:
        raise Unsupported("Multi-target model not supported")
    given = _width(header, settings)
    is_binary = settings.is_classifier and settings.predict_proba and header.classes == 1
    if width != given and not (is_binary and width == 1):
        raise ConfigInvalid(
            f"unable to load model '{config.name}', the trees give {given} values a row, but output '{_OUTPUT}' has "
            f"dims {list(config.output[0].dims)}",
            hint=f"set dims: [ {given} ]; is_classifier and predict_proba decide how many there are",
            field="output[0].dims",
        )


def _width(header: TreeHeader, settings: TreeSettings) -> int:
    if settings.is_classifier and not settings.predict_proba:
        return 1
    return max(2, header.classes) if settings.is_classifier else header.classes


def answers(scores: Array, settings: TreeSettings, width: int) -> Array:
    """The FP32 answer for each row of `scores` (rows, classes): (rows,), or (rows, classes) for probabilities.

    `width` is the number of values that the configuration gives the output: 1, or the number of classes. A binary
    classifier has one score, the probability of the second class.
    """
    if not settings.is_classifier:
        return _narrow(scores)
    if scores.shape[1] == 1:
        if not settings.predict_proba:
            above: Array = scores[:, 0] > settings.threshold
            return above.astype(np.float32)
        return _narrow(scores if width == 1 else np.concatenate([1 - scores, scores], axis=1))
    if settings.predict_proba:
        return _narrow(scores)
    # The first of the largest scores that are above 0, otherwise class 0.
    best: Array = scores.argmax(axis=1)
    best[scores.max(axis=1) <= 0] = 0
    return best.astype(np.float32)


def _narrow(scores: Array) -> Array:
    """Return the scores as FP32. A dimension of 1 is removed, as in Triton."""
    narrow = np.ascontiguousarray(scores, np.float32)
    return narrow[:, 0] if narrow.shape[1] == 1 else narrow


def tree_path(version: Path, config: ModelConfig, settings: TreeSettings) -> Path:
    named: str = config.default_model_filename
    # Triton's rule for a backend without a platform fills in this name, which no type of tree model has.
    is_given = named not in ("", f"model.{config.backend}")
    return path_of_model(version, config, named if is_given else DEFAULT_FILES[settings.model_type])


def type_of(path: Path, settings: TreeSettings) -> str:
    """The type by the file's content where XGBoost writes another format than the type says.

    XGBoost no longer writes its binary format: what it saves as `.model` is UBJSON.
    """
    start = start_of(path, 64) or b""
    if settings.model_type != "xgboost" or start[:1] != b"{":
        return settings.model_type
    # A quotation mark begins the first key of JSON, and nothing in UBJSON.
    return "xgboost_json" if start[1:].lstrip()[:1] == b'"' else "xgboost_ubj"


# --- predictions of Treelite's C library, called with what its Python function makes anew for each call
#
# `treelite.gtil.predict` takes 17 µs to make a configuration and to ask for shapes, which is as long as a small model
# takes. Source: Treelite's `c_api.h`, "General Tree Inference Library".

# Fewer visits than these, a visit being one row in one tree (35 to 70 ns), are not worth another thread.
_VISITS_PER_THREAD = 4000


@cache
def _library() -> Any:
    """The library that the package has loaded, with functions of our own: a process loads a file once."""
    from treelite.libpath import find_lib_path

    library = ctypes.CDLL(str(find_lib_path()[0]))
    pointer, count, text = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p
    library.TreeliteGetLastError.restype = text
    library.TreeliteGTILParseConfig.argtypes = [text, ctypes.POINTER(pointer)]
    library.TreeliteGTILDeleteConfig.argtypes = [pointer]
    library.TreeliteGTILGetOutputShape.argtypes = [
        pointer,
        count,
        pointer,
        ctypes.POINTER(ctypes.POINTER(count)),
        ctypes.POINTER(count),
    ]
    library.TreeliteGTILPredict.argtypes = [pointer, pointer, text, count, pointer, pointer]
    return library


def run_of(trees: Any, settings: TreeSettings, rules: RowRules, width: int, threads: int) -> Run:
    """Make the run of an instance: `width` values for each row, computed by at most `threads` threads.

    Rows are divided among threads here: those of OpenMP, which Treelite would divide them among, wait for each other
    by spinning, so that ten times the time is computed when other processes want the cores too. Besides, it is an error
    to want more of them than another library allows, as PyTorch does for its own models.
    """
    library = _library()
    features, visits = int(trees.num_feature), max(1, int(trees.num_tree))
    input_type = str(trees.input_type).encode()
    input_dtype, output_dtype = np.dtype(trees.input_type), np.dtype(trees.output_type)
    # Predictions on the calling thread, and as the model's objective says.
    config = ctypes.c_void_p()
    text = json.dumps({"predict_type": "default", "nthread": 1}).encode()
    _check(library.TreeliteGTILParseConfig(text, ctypes.byref(config)))
    # It starts them when they are needed, and they end when it is dropped.
    others = ThreadPoolExecutor(threads - 1, "trees") if threads > 1 else None

    def predict(rows: Array, scores: Array) -> None:
        """Write the scores of `rows`. Any thread; the interpreter's lock is released meanwhile."""
        given, written = rows.ctypes.data, scores.ctypes.data
        _check(library.TreeliteGTILPredict(trees.handle, given, input_type, len(rows), written, config))

    def run(names: list[str], feed: Mapping[str, Array], options: Any) -> list[Array]:
        rows = rules.applied(feed[INPUT]) if rules else feed[INPUT]
        # The library reads `features` values of each row, in order and of its own datatype.
        rows = np.ascontiguousarray(rows, input_dtype).reshape(-1, features)
        count = len(rows)
        scores: Array = np.zeros((count, *shape), output_dtype)
        used = min(threads, count, 1 + count * visits // _VISITS_PER_THREAD)
        if others is None or used <= 1:
            predict(rows, scores)
        else:
            ends = [count * number // used for number in range(used + 1)]
            parts = [(rows[start:end], scores[start:end]) for start, end in pairwise(ends)]
            submitted = [others.submit(predict, *part) for part in parts[1:]]
            try:
                predict(*parts[0])
            finally:
                wait(submitted)
            for each in submitted:
                each.result()
        # Rows, targets, classes; the backend lets no second target pass.
        return [answers(scores[:, 0, :], settings, width)]

    weakref.finalize(run, library.TreeliteGTILDeleteConfig, config).atexit = False
    sizes, dimensions = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint64()
    _check(library.TreeliteGTILGetOutputShape(trees.handle, 1, config, ctypes.byref(sizes), ctypes.byref(dimensions)))
    shape = tuple(int(size) for size in sizes[1 : dimensions.value])
    return run


def _check(status: int) -> None:
    if status:
        import treelite

        raise treelite.TreeliteError(_library().TreeliteGetLastError().decode(errors="replace"))


# --- differences between Treelite and the library that made the trees

# Bits of a node's `decision_type` in LightGBM's files: a node of categories, and which values are missing.
_CATEGORIES, _MISSING, _ZERO, _NAN = 1, 3 << 2, 1 << 2, 2 << 2
_NODES = re.compile(r"^split_feature=(.*)\n(?:[a-z].*\n)*?decision_type=(.*)$", re.MULTILINE)
_THRESHOLDS = re.compile(r"^threshold=(.*)\ndecision_type=(.*)$", re.MULTILINE)
# The largest number that LightGBM takes for zero.
_LEAST = float(np.float32(1e-35))


@dataclass(frozen=True, slots=True)
class RowRules:
    """The changes to rows before Treelite sees them. False without any.

    `zero_missing` are the features whose zeros are missing, `truncated` those that are categories, whose numbers are
    cut to whole ones: Treelite would take -0.5 for no category, LightGBM takes it for category 0.
    """

    missing: float
    zero_missing: tuple[int, ...] = ()
    truncated: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.zero_missing or self.truncated or not math.isnan(self.missing))

    def applied(self, rows: Array) -> Array:
        made: Array = np.array(rows)
        if not math.isnan(self.missing):
            made[made == self.missing] = np.nan
        for feature in self.zero_missing:
            column = made[..., feature]
            column[np.abs(column) <= _LEAST] = np.nan
        for feature in self.truncated:
            made[..., feature] = np.trunc(made[..., feature])
        return made


def rules_of(path: Path, settings: TreeSettings) -> RowRules:
    """The rules for the trees in the file at `path`. Raises Unsupported for features that trees of LightGBM read
    differently."""
    if settings.model_type != "lightgbm":
        return RowRules(settings.missing)
    text = text_of(path, errors="replace")
    zero_missing: set[int] = set()
    truncated: set[int] = set()
    others: set[int] = set()
    for features, decisions in _NODES.findall(text):
        for feature, decision in zip(map(int, features.split()), map(int, decisions.split()), strict=True):
            is_zero = decision & _MISSING == _ZERO
            (truncated if decision & _CATEGORIES else zero_missing if is_zero else others).add(feature)
    if mixed := (zero_missing & others) | (truncated & (zero_missing | others)):
        raise Unsupported(
            f"feature {min(mixed)} counts zeros as missing, or is a category, in some trees of LightGBM only: train "
            "all of them with the same parameters"
        )
    return RowRules(settings.missing, tuple(sorted(zero_missing)), tuple(sorted(truncated)))


def _load_lightgbm(path: Path) -> Any:
    """The trees, changed where Treelite would decide otherwise than LightGBM.

    Features whose zeros are missing are as those of which NaN is: `RowRules` makes it so. LightGBM takes the numbers
    next to zero for zero, so a threshold among them is moved to their end. Raises Unsupported for linear leaves.
    """
    import treelite

    text = text_of(path, errors="replace")
    for number, tree in enumerate(text.split("\nTree=")[1:]):
        if not _is_tree(tree):
            raise treelite.TreeliteError(f"the nodes of tree {number} are not a tree")
    if re.search(r"^is_linear=1$", text, re.MULTILINE):
        raise Unsupported("trees of LightGBM with linear leaves cannot be read: train without linear_tree")

    def changed_nodes(found: re.Match[str]) -> str:
        thresholds, decisions = found[1].split(), [int(each) for each in found[2].split()]
        for node, (threshold, decision) in enumerate(zip(thresholds, decisions, strict=True)):
            if decision & _CATEGORIES:
                continue
            if decision & _MISSING == _ZERO:
                decisions[node] = decision & ~_MISSING | _NAN
            if abs(number := float(threshold)) <= _LEAST:
                thresholds[node] = repr(_LEAST if number >= 0 else math.nextafter(-_LEAST, -math.inf))
        return f"threshold={' '.join(thresholds)}\ndecision_type={' '.join(map(str, decisions))}"

    changed = _THRESHOLDS.sub(changed_nodes, text)
    if changed == text:
        return treelite.frontend.load_lightgbm_model(str(path))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(changed)
        file.flush()
        return treelite.frontend.load_lightgbm_model(file.name)


# In XGBoost's JSON and UBJSON. Treelite takes memory for each of them before it reads the trees.
_CLASSES = re.compile(rb'num_(?:class|target)(?:"\s*:\s*("(?:[^"\\]|\\.)*")|[NS]*([iUIlL])(.{8}))', re.DOTALL)
# Letters and digits, which JSON may have as escapes, and XGBoost never writes so.
_ESCAPES = re.compile(rb"\\u00(?:3\d|[46][1-9a-fA-F]|[57][\daAfF])")
_LENGTHS = {b"i": 1, b"U": 1, b"I": 2, b"l": 4, b"L": 8}
_MOST_CLASSES = 1 << 20


def _read(path: Path, kind: str, settings: TreeSettings) -> Any:
    import treelite

    frontend, file = treelite.frontend, str(path)
    if kind == "treelite_checkpoint":
        return treelite.Model.deserialize(file)
    if kind == "lightgbm":
        return _load_lightgbm(path)
    if kind == "xgboost":
        return frontend.load_xgboost_model_legacy_binary(file)
    if path.stat().st_size:  # an empty file has no map
        with open_file(path) as model, mmap.mmap(model.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if kind == "xgboost_json" and (escape := _ESCAPES.search(content)):
                raise treelite.TreeliteError(f"it has {escape[0].decode()}, an escape that XGBoost does not write")
            most = max((_classes_of(found, content) for found in _CLASSES.finditer(content)), default=0)
        if most > _MOST_CLASSES:
            raise treelite.TreeliteError(f"it has {most} classes or targets, and may have {_MOST_CLASSES}")
    format_choice = "json" if kind == "xgboost_json" else "ubjson"
    return frontend.load_xgboost_model(
        file, format_choice=format_choice, allow_unknown_field=settings.allows_unknown_fields
    )


def _classes_of(found: re.Match[bytes], content: mmap.mmap) -> int:
    """Return the value of a found key as C++ reads it: after blanks and a sign, up to the first other character than a
    digit; 0 without digits."""
    text = ""
    if found[1] is None:
        size = _LENGTHS[found[2]]
        start = found.start(3) + size
        text = content[start : start + int.from_bytes(found[3][:size])].decode(errors="replace")
    else:
        with suppress(ValueError):  # the parser's own error
            text = json.loads(found[1].decode(errors="replace"), strict=False)
    digits = re.match(r"[\s+]*0*([0-9]{1,18})", text)
    return int(digits[1]) if digits else 0


def _is_tree(text: str) -> bool:
    """True if each node and leaf of a tree of LightGBM has one parent: Treelite follows cycles without an end."""
    leaves = re.search(r"^num_leaves=(\d{1,9})$", text, re.MULTILINE)
    children = [found[1].split() for found in re.finditer(r"^(?:left|right)_child=(.*)$", text, re.MULTILINE)]
    try:
        found = sorted(int(child) for side in children for child in side)
    except ValueError:
        return False
    count = int(leaves[1]) if leaves else 0
    if count < 2:
        return count == 1 and not found
    return len(found) == 2 * count - 2 and found == [*range(-count, 0), *range(1, count - 1)]


def read_trees(path: Path, settings: TreeSettings, model: str) -> Any:
    import treelite

    try:
        trees = _read(path, type_of(path, settings), settings)
        # Treelite reads whatever is there, beyond the end of a row too.
        for number in range(trees.num_tree):
            tree = trees.get_tree_accessor(number)
            features = tree.get_field("split_index")[tree.get_field("cleft") >= 0]
            if features.size and not (features.min() >= 0 and features.max() < trees.num_feature):
                raise treelite.TreeliteError(f"tree {number} has features beyond the {trees.num_feature} of a row")
        return trees
    except treelite.TreeliteError as exc:
        hint = content_hint(path) or (
            f"the file{written_by(path)} is not of type {settings.model_type}, or incomplete, or newer than Treelite "
            f"{treelite.__version__}, which is installed: set model_type to the format that it was saved in "
            f"({', '.join(DEFAULT_FILES)}), or compare it with the original"
        )
        # Without the time that Treelite writes, and the native stack that may follow.
        text = str(exc).partition("\nStack trace")[0].strip()
        text = text.partition("] ")[2] if text.startswith("[") and "] " in text else text
        raise ModelLoadFailed(f"failed to load model '{model}': {text}", hint=hint, model=model) from exc


def header_of(trees: Any) -> TreeHeader:
    header = trees.get_header_accessor()
    return TreeHeader(
        int(trees.num_feature), int(header.get_field("num_class")[0]), int(header.get_field("num_target")[0])
    )
