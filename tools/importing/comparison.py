"""Rows that `trident import` makes for a model, and how its answers to them differ from those of the original."""

from __future__ import annotations

import math
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from trident.core.backends.registry import BackendRegistry
from trident.core.config.platforms import is_ensemble
from trident.core.config.request_check import RequestValidator
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.errors import NotInstalled, ServerError
from trident.core.http.sample_request import SampleInput, SampleRequest, make_sample
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.tensors import BYTES, Array, Shape, shape_text
from trident.core.observability.log import say
from trident.core.repository.repository import ModelDirectory, version_path
from trident.core.scheduling.run_once import run_once
from trident.tools.importing.sources import Decisions, Options, Plan, run_original
from trident.tools.trial import first_instance

# Rows that are compared; those of models that take long end with the time. Seconds.
_ROWS = 256
_TIME = 20.0
_REQUEST = 64
_THRESHOLDS = 1024
_MOST_BYTES = 64 << 20
# Of a request that is run, and of a group of rows.
_MOST_NUMBERS, _MOST_OF_ROWS = 64 << 20, 16 << 20
_SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-38, -1e-38, 1e-3, 1e6, -1e6)
_EXTREME = {"NaN": (np.nan,), "infinities": (np.inf, -np.inf), "the largest numbers": (3.4e38, -3.4e38)}
_LARGEST = "rows with the largest numbers"
_PLAIN = np.array([[0.0, 1.0]])


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that are asked together, so that what the original refuses concerns them alone. `answer` is the message of
    the error where the model refuses them."""

    name: str
    inputs: Mapping[str, Array]
    answer: Mapping[str, Array] | str

    @property
    def rows(self) -> int:
        return len(next(iter(self.inputs.values())))


@dataclass(frozen=True, slots=True)
class TrialRun:
    """The answers of a model, to one group at least. `seconds` are those of the second request, `datatypes` those of
    the outputs."""

    groups: Sequence[RowGroup]
    datatypes: Mapping[str, str]
    seconds: float


def try_model(
    plan: Plan,
    folder: Path,
    config: ModelConfig,
    spec: ModelSpec,
    backends: BackendRegistry,
    shapes: Mapping[str, Shape],
) -> TrialRun | str:
    """Load the model and ask it; or why it is not run. Raises ServerError for a model that fails."""
    if is_ensemble(config):
        return "it is not run, because it is an ensemble: trident validate checks it with its steps"
    sample = make_sample(spec, shapes=shapes)
    answer = sum(math.prod(dim for dim in each.dims if dim > 0) for each in spec.outputs.values())
    if (count := answer + sum(each.count for each in sample.inputs)) > _MOST_NUMBERS:
        return f"it is not run, because a request and its answer have {count} numbers"
    path = version_path(ModelDirectory(spec.name, folder, is_renamed=True), spec.version)
    groups: list[RowGroup] = []
    times: list[float] = []
    failure: ServerError | None = None
    try:
        with first_instance(backends, path, config, spec) as instance:
            if plan.body:
                return plan.body
            begin = time.perf_counter()
            for name, rows in _groups(sample, plan):
                if time.perf_counter() - begin > _TIME and len(times) > 1:
                    break
                asked: list[dict[str, Array]] = []
                answered: list[dict[str, Array]] = []
                for part in _requests(sample, rows):
                    started = time.perf_counter()
                    if started - begin > _TIME and len(times) > 1:
                        break
                    try:
                        answered.append(_answer(instance, sample, part))
                    except ServerError as error:
                        failure = failure or error
                        groups.append(RowGroup(name, part, error.message))
                        break
                    times.append(time.perf_counter() - started)
                    asked.append(part)
                if asked:
                    groups.append(RowGroup(name, _joined(asked), _joined(answered)))
            if failure and not times:
                raise failure
    except NotInstalled as error:
        return f"it is not run: {error.message}; {error.hint}"
    datatypes = {each.name: each.datatype.name for each in spec.outputs.values()}
    return TrialRun(groups, datatypes, times[1] if len(times) > 1 else times[0])


def _answer(instance: Any, sample: SampleRequest, arrays: Mapping[str, Array]) -> dict[str, Array]:
    spec = sample.spec
    tensors = [
        InputTensor(each.name, each.datatype.name, arrays[each.name].shape, arrays[each.name]) for each in sample.inputs
    ]
    request = InferenceRequest(spec.name, tensors, model_version=spec.version, parameters=dict(sample.parameters))
    (outputs,) = run_once(instance, [request], RequestValidator(spec).check)
    return {each.name: np.array(each.array) for each in outputs}


def _joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    if len(parts) == 1:
        return dict(parts[0])
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _groups(sample: SampleRequest, plan: Plan) -> Iterator[tuple[str, dict[str, Array]]]:
    """Rows of random numbers with special ones, like those the model was made for, of unknown categories, at
    thresholds, without negative numbers, and of extreme ones: in groups, as originals may refuse each of them."""
    random = np.random.default_rng(0)
    decisions = plan.decisions()
    inputs = list(sample.inputs)
    is_table = bool(decisions.usual) and all(sample.spec.inputs[each.name].dims[0] == -1 for each in inputs)
    rows = _ROWS if sample.spec.max_batch_size > 0 or is_table else 0
    if is_table and not sample.spec.max_batch_size:
        # It takes rows all the same, whatever its answers look like.
        inputs = [replace(each, inner=each.shape[1:]) for each in inputs]
    if rows:
        rows = max(1, min(rows, _MOST_OF_ROWS // max(1, sum(math.prod(each.inner) for each in inputs))))
    ordinary = {each.name: _usual(decisions, each) for each in inputs}

    def made(rows: int, special: Sequence[float], unknown: float = 0.0, *, like: bool = False) -> dict[str, Array]:
        return {
            each.name: _made(
                each,
                rows,
                random,
                special,
                decisions.known.get(each.name, ()),
                unknown,
                ordinary[each.name] if like else _PLAIN,
            )
            for each in inputs
        }

    usual = "random and special rows"
    if not rows:
        # As many requests, whose shape may be fixed.
        size = sum(each.count * each.datatype.dtype.itemsize for each in inputs)
        for number in range(max(1, min(_ROWS, _MOST_BYTES // max(1, size)))):
            yield usual, made(0, _SPECIAL if number else ())
        return
    if not sample.spec.max_batch_size:
        yield "one row", made(1, ())
    yield usual, made(rows, _SPECIAL)
    # By themselves: their answers may be of another size.
    if any((numbers != _PLAIN).any() for numbers in ordinary.values()):
        yield "rows like those it was made for", made(rows, (), like=True)
    if any(values for columns in decisions.known.values() for values in columns):
        yield "unknown categories and texts", made(-(-rows // 2), (), 0.5)
    numbers = {each.name for each in inputs if each.datatype.kind == "f"}
    if not numbers:
        return
    starts = [0, *accumulate(each.inner[-1] if each.inner else 1 for each in inputs)]
    near = []
    for feature, threshold in decisions.thresholds:
        place = bisect_right(starts, feature) - 1
        if inputs[place].name in numbers:
            near.append((inputs[place].name, feature - starts[place], threshold))
    if near:
        most = min(_THRESHOLDS, 4 * rows, max(1, _MOST_OF_ROWS // starts[-1]))
        near = [near[at] for at in random.permutation(len(near))[:most]]
        at = made(3 * len(near), (), like=True)
        for row, (name, column, threshold) in enumerate(near):
            with np.errstate(over="ignore"):
                it = at[name].dtype.type(threshold)
            at[name][3 * row : 3 * row + 3, column] = np.nextafter(it, -np.inf), it, np.nextafter(it, np.inf)
        yield "rows at thresholds", at
    categories = [
        (name, column)
        for name in sorted(numbers)
        for column, values in enumerate(decisions.known.get(name, ()))
        if values
    ]
    if categories:
        missing = made(-(-rows // 4), ())
        for name, column in categories:
            missing[name][random.random(len(missing[name])) < 0.3, column] = np.nan
        yield "rows with missing categories", missing
    positive = made(-(-rows // 4), ())
    yield "rows without negative numbers", positive | {name: np.abs(positive[name]) for name in numbers}
    for name, special in _EXTREME.items():
        yield f"rows with {name}", made(-(-rows // 4), special)


def _usual(decisions: Decisions, each: SampleInput) -> Array:
    """The mean and the spread of each column of an input: those that are told, or else those of its thresholds."""
    width = each.inner[-1] if each.inner else 1
    usual = decisions.usual.get(each.name)
    told = np.array(usual) if usual else np.tile(_PLAIN, (width, 1))
    if not decisions.usual:
        numbers: dict[int, list[float]] = {}
        for feature, number in decisions.thresholds:
            numbers.setdefault(feature, []).append(number)
        for feature, found in numbers.items() if max(numbers, default=0) < width else ():
            spread = float(np.std(found)) or abs(found[0]) / 10 or 1.0
            told[feature] = np.mean(found), spread
    return told


def _made(
    each: SampleInput,
    rows: int,
    random: Any,
    special: Sequence[float],
    known: Sequence[Sequence[Any]],
    unknown: float,
    usual: Array,
) -> Array:
    """A made-up tensor, with `rows` rows where the model batches; a few numbers of half of the rows are special.

    Columns with known values have these, except for a part `unknown` of their rows. `usual` are the mean and the
    spread of each column.
    """
    shape = (rows, *each.inner) if rows and len(each.inner) < len(each.shape) else each.shape
    if each.datatype is BYTES:
        texts = np.array([b"text", b"", b"a longer text of several words", "caf\u00e9".encode()], object)
        made = np.full(shape, b"text", object) if not rows else np.asarray(texts[random.integers(0, 4, shape)])
    elif each.datatype.kind in "iub":
        made = np.asarray(random.integers(0, 2, shape).astype(each.datatype.dtype))
    elif each.datatype.name == "BF16":
        return np.full(shape, 0x3F80, each.datatype.dtype)
    else:
        numbers = random.normal(size=shape)
        if len(shape) == 2:
            numbers = numbers * usual[:, 1] + usual[:, 0]
        if len(special):
            chosen = random.random(shape) < 0.2
            chosen[: rows // 2] = False
            numbers = np.where(chosen, random.choice(special, shape), numbers)
        with np.errstate(over="ignore"):
            made = np.asarray(numbers.astype(each.datatype.dtype))
    for column, values in enumerate(known if rows and len(shape) == 2 else ()):
        if values:
            kept = random.random(rows) >= unknown
            # Each of them, where there are fewer than rows.
            every = np.resize(random.permutation(np.array(values, object)), rows)
            if each.datatype is BYTES:
                every = np.array([str(value).encode() for value in every], object)
            elif unknown:
                made[:, column] = random.choice([-1.0, -0.5, 0.5, 1.5, max(values) + 1, 1e9], rows)
            made[kept, column] = every[kept].astype(made.dtype)
    return made


def _requests(sample: SampleRequest, arrays: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """The rows as one and as many as the model takes at once."""
    most = sample.spec.max_batch_size
    if most <= 0:
        yield dict(arrays)
        return
    count = len(next(iter(arrays.values())))
    start, size = 0, 1
    while start < count:
        yield {name: array[start : start + size] for name, array in arrays.items()}
        start, size = start + size, min(most, _REQUEST)


def print_comparison(plan: Plan, trial: TrialRun, options: Options) -> int:
    """Ask the original, and print how the answers differ. Returns 1 if they differ too much."""
    first, rows = next((each.answer, each.rows) for each in trial.groups if not isinstance(each.answer, str))
    shapes = {name: (-1, *a.shape[1:]) if rows > 1 and a.shape[:1] == (rows,) else a.shape for name, a in first.items()}
    answers = ", ".join(f"{name} {trial.datatypes[name]} {shape_text(shape)}" for name, shape in shapes.items())
    say(f"it answers in {trial.seconds * 1000:.3g} ms: {answers}")
    if not plan.original:
        say("it is not compared: nothing else runs such a source here")
        return 0
    try:
        originals = ask_original(plan, trial, options)
    except ServerError as error:
        hint = f"\n  hint: {error.hint}" if error.hint else ""
        say(f"it is not compared with the original: {error.message}{hint}")
        return 0
    compared, worst, left_out = 0, (0.0, ""), set()
    for group, original in zip(trial.groups, originals, strict=True):
        if isinstance(original, str):
            continue
        if isinstance(group.answer, str):
            say(f"error: it refuses what the original, run by itself, answers ({group.name}): {group.answer}")
            return 1
        try:
            found, without = compare(group.answer, original, _TOLERANCE / 10 if plan.instead else _TOLERANCE)
        except Differs as error:
            # Sums of doubles that are beyond FP32, of a model that does not only compare numbers.
            if group.name == _LARGEST and plan.original == "pickled" and not plan.decisions().thresholds:
                say(f"it answers otherwise than the original to {_LARGEST}, of which FP32 has no sums: {error}")
                continue
            say(f"error: the original, run by itself, answers otherwise ({group.name}): {error}")
            return 1
        worst = max(worst, found)
        left_out |= without
        compared += group.rows
    refused = {group.name: text for group, text in zip(trial.groups, originals, strict=True) if isinstance(text, str)}
    if not compared:
        say(f"it is not compared with the original, which refuses all rows: {next(iter(refused.values()))}")
        return 0
    for name, text in refused.items():
        say(f"not compared, as the original refuses them: {name}: {text}")
    if len(left_out) == len(first):
        say("it is not compared with the original, which has no such outputs")
        return 0
    for name in sorted(left_out):
        say(f"not compared, as the original has no function for it: the output {name}")
    place = f" at {worst[1]}" if worst[0] else ""
    say(f"the original, run by itself, answers the same to {compared} rows: largest difference {worst[0]:.2g}{place}")
    return 0


# What another order of the same sums makes of FP32, of each number and of the usual size of an output; a tenth where
# the model can be made in another way.
_TOLERANCE = 1e-3


class Differs(Exception):
    """The model answers otherwise than its source; the argument says where."""


def ask_original(plan: Plan, trial: TrialRun, options: Options) -> list[dict[str, Array] | str]:
    """The answers of the source itself to each group of rows, or why it refuses them. Raises ServerError if it cannot
    run here."""
    answers: list[dict[str, Array] | str] = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        for number, group in enumerate(trial.groups):
            arrays = {name: _plain(array) for name, array in group.inputs.items()}
            np.savez(Path(folder, f"given-{number:04}.npz"), allow_pickle=False, **arrays)
        refused = run_original(options, plan.original, str(plan.original_file), folder)
        for number, text in enumerate(refused):
            if text:
                answers.append(text)
                continue
            with np.load(Path(folder, f"answered-{number}.npz"), allow_pickle=False) as stored:
                answers.append(dict(stored))
    return answers


def compare(
    outputs: Mapping[str, Array], originals: Mapping[str, Array], tolerance: float
) -> tuple[tuple[float, str], set[str]]:
    """The largest difference with its place, and the outputs that the original does not have. Raises Differs."""
    # Trees and packages have no names of Triton's form: theirs are numbers.
    keys = {name: name if name in originals else str(number) for number, name in enumerate(outputs)}
    found = [
        _difference(name, _plain(array), _plain(originals[keys[name]]), tolerance)
        for name, array in outputs.items()
        if keys[name] in originals
    ]
    return max(found, default=(0.0, "")), {name for name, key in keys.items() if key not in originals}


def _difference(name: str, ours: Array, original: Array, tolerance: float) -> tuple[float, str]:
    if ours.size != original.size:
        raise Differs(f"{name} has {ours.size} elements, and the original's {original.size}")
    original = original.reshape(ours.shape)
    if ours.dtype.kind in "US" or original.dtype.kind in "US":
        mine, theirs = ours.astype(str), original.astype(str)
        wrong = np.argwhere(mine != theirs)
        if len(wrong):
            at = tuple(wrong[0])
            raise Differs(f"{name}{list(map(int, at))} is '{mine[at]}', and the original's '{theirs[at]}'")
        return 0.0, ""
    # A label that is a bool is the number 0 or 1 of ONNX. Labels and counts are the same or not, however large.
    is_exact = ours.dtype.kind in "iub" or original.dtype.kind in "iub"
    mine, theirs = ours.astype(float), original.astype(float)
    usual = np.abs(theirs[np.isfinite(theirs)])
    scale = float(np.median(usual)) if usual.size else 1.0
    with np.errstate(invalid="ignore"):
        distance = np.abs(mine - theirs)
        is_same = (ours == original) | (np.isnan(mine) & np.isnan(theirs))
        distance[is_same] = 0.0
        allowed = 0 if is_exact else tolerance * np.maximum(np.abs(theirs), max(scale, 1e-6))
        wrong = np.argwhere(~is_same & ~(distance <= allowed))
    if len(wrong):
        at = tuple(wrong[0])
        raise Differs(
            f"{len(wrong)} of {mine.size} numbers; {name}{list(map(int, at))} is {ours[at]:g}, and the original's "
            f"{original[at]:g}"
        )
    if not distance.size:
        return 0.0, ""
    worst = np.unravel_index(int(np.argmax(distance)), distance.shape)
    return float(distance[worst]), f"{name}{list(map(int, worst))}"


def _plain(array: Array) -> Array:
    """Texts as an array of a fixed width, which is stored without a pickle."""
    if array.dtype.kind not in "OS":
        return array
    texts = [
        value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value) for value in array.ravel()
    ]
    return np.array(texts, str).reshape(array.shape)
