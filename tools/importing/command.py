"""The commands that make a model in a repository: `trident import` makes it of what another program wrote, and asks it
once; `trident init` writes a Python model to begin with."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.text_format import MessageToString

from trident.adapters.common.options import FILE, FOLDER, SWITCH, TEXT, BadOption, BadValue, Kind, Option
from trident.app.process.environment import process_environment
from trident.app.terminal import drawn
from trident.core.backends.python.environment import CACHE_DIRECTORY
from trident.core.backends.registry import BackendRegistry
from trident.core.config.platforms import is_ensemble
from trident.core.config.request_check import RequestValidator
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.cuda import gpu_ids
from trident.core.errors import InvalidRequest, NotInstalled, ServerError
from trident.core.http.sample_request import Place, SampleInput, SampleRequest, make_sample, parse_shape, write_request
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.tensors import BY_NAME, BYTES, Array, Shape, shape_text
from trident.core.observability.log import LogOptions, configure_logging
from trident.core.repository.check import ModelCheck, check_model
from trident.core.repository.location import Scheme, parse_location
from trident.core.repository.repository import BYTECODE, CONFIG_FILE, GOLDEN_REQUESTS, ModelDirectory, version_path
from trident.core.scheduling.run_once import run_once
from trident.tools.importing.sources import Options, Plan, plans_of, run_original
from trident.tools.options import CACHE_OPTIONS, CloudCache, read_cloud_cache, read_values
from trident.tools.trial import first_instance

_own = Option.of_command


def _input(text: str) -> tuple[str, Shape]:
    datatype, _, dims = text.partition(":")
    try:
        _, shape = parse_shape(f"x:{dims}")
    except InvalidRequest:
        shape = ()
    if datatype not in BY_NAME or not shape:
        raise BadValue(f"expected a datatype and a shape as FP32:1,16, got '{text}'")
    return datatype, shape


REPOSITORY = _own("repository", FOLDER, "models", "Folder of the models; default models.")
_NAME = _own("name", TEXT, "", "Of the model; default as the source is called.")
_DRY_RUN = _own("dry-run", SWITCH, False, "Show the model, and make nothing.")
_TRUST = _own(
    "trust-pickle", SWITCH, False, "Run code of the source's author, such as pickles, which can do all that you can."
)
_INPUT = _own(
    "input",
    Kind("DATATYPE:SHAPE", _input),
    (),
    "FP32:1,16, the next argument of a model that does not say what it takes, with the shape of one request.",
    repeatable=True,
)
_PYTHON = _own("python", FILE, sys.executable, "The interpreter that has the source's framework; default this one.")
_LINK = _own("link", SWITCH, False, "Link to the files of the source instead of copying them.")
_KEEP = _own("keep", SWITCH, False, "Keep a model that answers otherwise than its source.")
_NO_RUN = _own("no-run", SWITCH, False, "Neither run the model nor compare it.")
_SIGN = _own("sign", FILE, "", "Sign the model with this private key in PEM, for --model-signature of serve.")
ACCEPTED = (_NAME, REPOSITORY, _DRY_RUN, _TRUST, _INPUT, _PYTHON, _LINK, _NO_RUN, _KEEP, _SIGN, *CACHE_OPTIONS)
_FITS = re.compile(r"[^A-Za-z0-9._-]+")
_URL = "http://localhost:8000"


def import_model(arguments: Sequence[str]) -> int:
    """Make the models, and print what was made and the request that works.

    Returns 1 if a model fails or answers otherwise than its source. Raises BadOption and ServerError.
    """
    values, words = read_values(ACCEPTED, arguments)
    if len(words) != 1:
        raise BadOption("one source is expected: trident import SOURCE")
    # Warnings that concern the model are in its report.
    configure_logging(LogOptions(info=False, warning=False, error=False))
    repository = Path(values[REPOSITORY.flag])
    if parse_location(values[REPOSITORY.flag]).scheme is not Scheme.LOCAL:
        raise BadOption.of("--repository", "a model is made in a folder: upload it from there")
    cache = read_cloud_cache(values, process_environment())
    with tempfile.TemporaryDirectory(prefix="trident-import-") as made, _on_disk(words[0], cache) as source:
        options = Options(
            scratch=Path(made),
            python=values[_PYTHON.flag],
            trust_pickle=values[_TRUST.flag],
            runs=not values[_NO_RUN.flag],
            inputs=values[_INPUT.flag],
        )
        plans = plans_of(source, options)
        if not plans:
            raise InvalidRequest(f"there is no model in {source}")
        if values[_NAME.flag] and len(plans) > 1:
            raise BadOption.of("--name", f"{words[0]} has {len(plans)} models, which keep their names")
        environments = str(Path(cache.path, "environments"))
        backends = BackendRegistry({"": {}, "python": {CACHE_DIRECTORY: environments}}, gpu_ids=gpu_ids())
        status = 0
        for plan in plans:
            name = _FITS.sub("_", values[_NAME.flag] or plan.name or source.stem)
            status |= _import(plan, name, repository / name, options, backends, values)
        return status


@contextmanager
def _on_disk(source: str, cache: CloudCache) -> Iterator[Path]:
    """The source as a file or folder, which is there while the context lasts: one in an object store is fetched."""
    location = parse_location(source)
    if location.scheme is Scheme.LOCAL:
        yield Path(source)
        return
    above, _, name = location.text.rpartition("/")
    if not location.prefix:
        raise InvalidRequest(f"{source} is a whole bucket", hint="name a folder or an object in it")
    opener = cache.opener()
    try:
        folder = opener.open_folder(above)
        listed = folder.objects(name)
        wanted = {key: each for key, each in listed.items() if key == name or key.startswith(f"{name}/")}
        if not wanted:
            raise InvalidRequest(f"there is nothing at {source}", hint=f"{above} has other names" if listed else None)
        with drawn(opener.progress):
            snapshot = folder.fetch(name, wanted)
        try:
            yield snapshot.path / name
        finally:
            snapshot.release()
    finally:
        opener.stop()


def _import(
    plan: Plan, name: str, target: Path, options: Options, backends: BackendRegistry, values: Mapping[str, Any]
) -> int:
    """Make one model, or the one that takes its place if it is wrong. Returns 1 if it is wrong."""
    status = _make(plan, name, target, options, backends, values)
    if not status or plan.instead is None or target.exists():
        return status
    print("it is made in another way instead")
    return _make(plan.instead, name, target, options, backends, values)


def _make(
    plan: Plan, name: str, target: Path, options: Options, backends: BackendRegistry, values: Mapping[str, Any]
) -> int:
    """Make one model beside its place, `target`, and move it there. Returns 1 if it is wrong."""
    is_dry = values[_DRY_RUN.flag]
    if target.exists() and not is_dry:
        raise BadOption(f"{target} is there already: choose another --name, or remove it")
    if not is_dry:
        target.parent.mkdir(parents=True, exist_ok=True)

    def say(text: str, hint: str | None = None) -> None:
        shown = f"{text}\n  hint: {hint}" if hint else text
        print(shown.replace(str(folder), str(target)), flush=True)

    # A server passes over names that begin with a dot.
    beside = None if is_dry else target.parent.absolute()
    with tempfile.TemporaryDirectory(prefix=".import-", dir=beside) as staging:
        folder = Path(staging, name)
        say("; ".join([f"{name}: {plan.what}", *plan.notes]))
        try:
            build(plan, folder, options.scratch, link=values[_LINK.flag])
        except OSError as error:
            raise InvalidRequest(f"{error.filename}: {error.strerror}") from error
        is_run = is_dry or not values[_NO_RUN.flag]
        if is_run and (folder / "requirements.txt").is_file():
            say("its environment is made by pip, unless it was before, which takes a minute")
        if is_run or plan.is_small_batched:
            found = check(folder, name, plan, backends)
        if not is_run:
            _place(folder, target, values[_SIGN.flag])
            return 0
        for problem in found.problems:
            say(f"error: {problem.message}", problem.hint)
        if found.problems:
            return 1
        for warning in found.warnings:
            say(f"warning: {warning.message}", warning.hint)
        for config, _ in found.valid[-1:]:
            fixed = [f"{each.name} {shape_text(each.dims)}" for each in config.input if each.dims[:1] not in ([], [-1])]
            if plan.is_small_batched and not config.max_batch_size and fixed:
                say(f"it does not batch, as its first dimension is fixed: {', '.join(fixed)}", _VARYING)
        for _, missing in found.unchecked:
            say(f"it is not run: {missing.message}", missing.hint)
        if is_dry:
            say(f"\nnothing was made, because of --dry-run\n{_tree(folder)}")
            for config, _ in found.valid[-1:]:
                say(f"\nits configuration, as the server completes it\n{MessageToString(config)}")
            return 0
        status, example = 0, ""
        for config, spec in found.valid[-1:] if not found.unchecked else []:
            shapes = dict(zip(spec.inputs, (shape for _, shape in options.inputs), strict=False))
            example = _request(plan, spec, shapes)
            try:
                trial = try_model(plan, folder, config, spec, backends, shapes)
            except ServerError as error:
                say(f"error: it loads, and fails: {error.message}", error.hint)
                return 1
            if isinstance(trial, str):
                say(trial)
            else:
                status = _compared(plan, trial, options)
        if status and not values[_KEEP.flag]:
            say("nothing was made: --keep makes it all the same")
            return status
        placed = _place(folder, target, values[_SIGN.flag])
        say(f"\n{_tree(placed)}\n\nserve it: trident serve {target.parent}")
    if example:
        print(f"ask it{', with a body of yours' if plan.body else ''}:\n{example}")
    return status


def _place(folder: Path, target: Path, key: str) -> Path:
    """Move a model to its place, signed if there is a key. Returns that place."""
    if key:
        from trident.core.repository.signature import sign_model

        for compiled in list(folder.rglob(BYTECODE)):  # the trial of a Python model wrote it
            shutil.rmtree(compiled)
        sign_model(folder, Path(key))
    return folder.rename(target)


def _compared(plan: Plan, trial: TrialRun, options: Options) -> int:
    """Print how the answer differs from that of the original. Returns 1 if it differs too much."""
    first = trial.outputs[0]
    assert not isinstance(first, str)  # or it has failed
    answers = ", ".join(f"{name} {trial.datatypes[name]} {shape_text(a.shape)}" for name, a in first.items())
    print(f"it answers in {trial.seconds * 1000:.3g} ms: {answers}")
    if not plan.original:
        print("it is not compared: nothing else runs such a source here")
        return 0
    try:
        originals = ask_original(plan, trial, options)
    except ServerError as error:
        hint = f"\n  hint: {error.hint}" if error.hint else ""
        print(f"it is not compared with the original: {error.message}{hint}")
        return 0
    compared, worst, left_out = 0, (0.0, ""), set()
    for group, outputs, original in zip(trial.groups, trial.outputs, originals, strict=True):
        if isinstance(original, str):
            continue
        if isinstance(outputs, str):
            print(f"error: it refuses what the original, run by itself, answers ({group.name}): {outputs}")
            return 1
        try:
            found, without = compare(outputs, original)
        except Differs as error:
            print(f"error: the original, run by itself, answers otherwise ({group.name}): {error}")
            return 1
        worst = max(worst, found)
        left_out |= without
        compared += group.rows
    refused = {group.name: text for group, text in zip(trial.groups, originals, strict=True) if isinstance(text, str)}
    if not compared:
        print(f"it is not compared with the original, which refuses all rows: {next(iter(refused.values()))}")
        return 0
    for name, text in refused.items():
        print(f"not compared, as the original refuses them: {name}: {text}")
    if len(left_out) == len(first):
        print("it is not compared with the original, which has no such outputs")
        return 0
    for name in sorted(left_out):
        print(f"not compared, as the original has no function for it: the output {name}")
    place = f" at {worst[1]}" if worst[0] else ""
    print(f"the original, run by itself, answers the same to {compared} rows: largest difference {worst[0]:.2g}{place}")
    return 0


def _tree(folder: Path) -> str:
    """The files of a model, up to those of one level in its versions."""
    lines = [f"{folder}/"]
    for path in sorted(folder.rglob("*")):
        depth = len(path.relative_to(folder).parts)
        if depth <= 2:
            link = f" -> {path.readlink()}" if path.is_symlink() else ""
            lines.append(f"{'  ' * depth}{path.name}{'/' if path.is_dir() else ''}{link}")
    return "\n".join(lines)


def _request(plan: Plan, spec: ModelSpec, shapes: Mapping[str, Shape]) -> str:
    """A request that works as it stands; for Python where it is too large for a shell, or has no form in JSON."""
    sample = make_sample(spec, shapes=shapes)
    if any(each.datatype is BYTES for each in sample.inputs):
        texts = {name: str(columns[0][0]) for name, columns in plan.decisions().known.items() if columns and columns[0]}
        inputs = tuple(replace(each, text=texts.get(each.name, each.text)) for each in sample.inputs)
        sample = replace(sample, inputs=inputs)
    for form in ("curl", "http"):
        with suppress(InvalidRequest):
            return write_request(sample, form, Place(url=_URL))
    return ""


# --- the model's folder
_VARYING = "export it with a first dimension that varies, or mend the file as docs/exporting-models.md says: Batching"
_MAX_BATCH_SIZE = 64


def build(plan: Plan, folder: Path, scratch: Path, *, link: bool = False) -> None:
    """Make the model's folder. With `link` the files stay where they are, and links lead to them, except to those in
    `scratch`, which does not last. Raises OSError."""
    for name, source in plan.files.items():
        target = folder / name if name else folder
        target.parent.mkdir(parents=True, exist_ok=True)
        if link and not source.is_relative_to(scratch):
            target.symlink_to(source.absolute(), target_is_directory=source.is_dir())
        elif source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
    for name, text in plan.texts.items():
        (folder / name).write_text(text)


def check(folder: Path, name: str, plan: Plan, backends: BackendRegistry) -> ModelCheck:
    """Check the folder as the server would. A model that batches by its own account gets a larger batch size."""
    directory = ModelDirectory(name, folder, is_renamed=True)
    found = check_model(directory, backends)
    batches = any(config.max_batch_size > 1 for config, _ in found.valid)
    if plan.is_small_batched and batches and not (folder / CONFIG_FILE).exists():
        (folder / CONFIG_FILE).write_text(f"max_batch_size: {_MAX_BATCH_SIZE}\ndynamic_batching {{ }}\n")
        found = check_model(directory, backends)
    return found


# --- requests to the model, and to the original

# Rows that are compared; those of models that take long end with the time. Seconds.
_ROWS = 256
_TIME = 20.0
_REQUEST = 64
_THRESHOLDS = 1024
_MOST_BYTES = 64 << 20
_SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-38, -1e-38, 1e-3, 1e6, -1e6)
_EXTREME = {"NaN": (np.nan,), "infinities": (np.inf, -np.inf), "the largest numbers": (3.4e38, -3.4e38)}


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that are asked together, so that what the original refuses concerns them alone."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class TrialRun:
    """The rows of each group and the model's answers to them. `seconds` are those of the second request.

    `datatypes` are those of the outputs. An answer is the message of the error where the model refuses the rows.
    """

    groups: Sequence[RowGroup]
    inputs: Sequence[Mapping[str, Array]]
    outputs: Sequence[Mapping[str, Array] | str]
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
    path = version_path(ModelDirectory(spec.name, folder, is_renamed=True), spec.version)
    groups: list[RowGroup] = []
    inputs: list[dict[str, Array]] = []
    outputs: list[dict[str, Array] | str] = []
    times: list[float] = []
    try:
        with first_instance(backends, path, config, spec) as instance:
            if plan.body:
                return plan.body
            begin = time.perf_counter()
            for name, rows in _groups(sample, plan):
                asked: list[dict[str, Array]] = []
                answered: list[dict[str, Array]] = []
                failure = ""
                for part in _requests(sample, rows):
                    started = time.perf_counter()
                    if started - begin > _TIME and len(times) > 1:
                        break
                    asked.append(part)
                    try:
                        answered.append(_answer(instance, sample, part))
                    except ServerError as error:
                        if not times:
                            raise
                        failure = error.message
                        break
                    times.append(time.perf_counter() - started)
                if asked:
                    inputs.append(_joined(asked))
                    outputs.append(failure or _joined(answered))
                    groups.append(RowGroup(name, len(next(iter(inputs[-1].values())))))
    except NotInstalled as error:
        return f"it is not run: {error.message}; {error.hint}"
    datatypes = {each.name: each.datatype.name for each in spec.outputs.values()}
    return TrialRun(groups, inputs, outputs, datatypes, times[1] if len(times) > 1 else times[0])


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
    """Rows of random numbers and special ones, of unknown categories, at thresholds, without negative numbers, and of
    extreme ones: in groups, as originals may refuse each of them."""
    random = np.random.default_rng(0)
    rows = _ROWS if sample.spec.max_batch_size > 0 else 0
    decisions = plan.decisions()

    def made(rows: int, special: Sequence[float], unknown: float = 0.0) -> dict[str, Array]:
        return {
            each.name: _made(each, rows, random, special, decisions.known.get(each.name, ()), unknown)
            for each in sample.inputs
        }

    usual = "random and special rows"
    if not rows:
        # As many requests, whose shape may be fixed.
        size = sum(each.count * each.datatype.dtype.itemsize for each in sample.inputs)
        for number in range(max(1, min(_ROWS, _MOST_BYTES // max(1, size)))):
            yield usual, made(0, _SPECIAL if number else ())
        return
    yield usual, made(rows, _SPECIAL)
    if any(values for columns in decisions.known.values() for values in columns):
        yield "unknown categories and texts", made(rows // 2, (), 0.5)
    if any(each.datatype.kind != "f" for each in sample.inputs):
        return
    if decisions.thresholds and len(sample.inputs) == 1:
        (given,) = sample.inputs
        chosen = [decisions.thresholds[at] for at in random.permutation(len(decisions.thresholds))[:_THRESHOLDS]]
        numbers = np.array([number for _, number in chosen], np.float32)
        near = [np.nextafter(numbers, np.float32(-np.inf)), numbers, np.nextafter(numbers, np.float32(np.inf))]
        at = made(3 * len(chosen), ())
        at[given.name][np.arange(3 * len(chosen)), [feature for feature, _ in chosen] * 3] = np.concatenate(near)
        yield "rows at thresholds", at
    yield "rows without negative numbers", {name: np.abs(array) for name, array in made(rows // 4, ()).items()}
    for name, special in _EXTREME.items():
        yield f"rows with {name}", made(rows // 4, special)


def _made(
    each: SampleInput,
    rows: int,
    random: Any,
    special: Sequence[float],
    known: Sequence[Sequence[Any]] = (),
    unknown: float = 0.0,
) -> Array:
    """A made-up tensor, with `rows` rows where the model batches; a few numbers of half of the rows are special.

    Columns with known values have these, except for a part `unknown` of their rows.
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


# What another order of the same sums makes of FP32, of each number and of the usual size of an output.
_TOLERANCE = 1e-3


class Differs(Exception):
    """The model answers otherwise than its source; the argument says where."""


def ask_original(plan: Plan, trial: TrialRun, options: Options) -> list[dict[str, Array] | str]:
    """The answers of the source itself to each group of rows, or why it refuses them. Raises ServerError if it cannot
    run here."""
    answers: list[dict[str, Array] | str] = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        for number, inputs in enumerate(trial.inputs):
            arrays = {name: _plain(array) for name, array in inputs.items()}
            np.savez(Path(folder, f"given-{number:04}.npz"), allow_pickle=False, **arrays)
        refused = run_original(options, plan.original, str(plan.original_file), folder)
        for number, text in enumerate(refused):
            if text:
                answers.append(text)
                continue
            with np.load(Path(folder, f"answered-{number}.npz"), allow_pickle=False) as stored:
                answers.append(dict(stored))
    return answers


def compare(outputs: Mapping[str, Array], originals: Mapping[str, Array]) -> tuple[tuple[float, str], set[str]]:
    """The largest difference with its place, and the outputs that the original does not have. Raises Differs."""
    # Trees and packages have no names of Triton's form: theirs are numbers.
    keys = {name: name if name in originals else str(number) for number, name in enumerate(outputs)}
    found = [
        _difference(name, _plain(array), originals[keys[name]])
        for name, array in outputs.items()
        if keys[name] in originals
    ]
    return max(found, default=(0.0, "")), {name for name, key in keys.items() if key not in originals}


def _difference(name: str, ours: Array, original: Array) -> tuple[float, str]:
    if ours.size != original.size:
        raise Differs(f"{name} has {ours.size} elements, and the original's {original.size}")
    original = original.reshape(ours.shape)
    if ours.dtype.kind in "USb" or original.dtype.kind in "USb":
        found = ours.astype(str)
        wrong = np.argwhere(found != original.astype(str))
        if len(wrong):
            at = tuple(wrong[0])
            raise Differs(f"{name}{list(map(int, at))} is {found[at]!r}, and the original's {original[at]!r}")
        return 0.0, ""
    mine, theirs = ours.astype(float), original.astype(float)
    usual = np.abs(theirs[np.isfinite(theirs)])
    scale = float(np.median(usual)) if usual.size else 1.0
    with np.errstate(invalid="ignore"):
        distance = np.abs(mine - theirs)
        is_same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
        distance[is_same] = 0.0
        allowed = _TOLERANCE * np.maximum(np.abs(theirs), max(scale, 1e-6))
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
    if array.dtype.kind != "O":
        return array
    texts = [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in array.ravel()]
    return np.array(texts, str).reshape(array.shape)


# --- `trident init`: a Python model that serves as it stands, with a golden request that tests it

_MODEL = '''\
"""Scales the numbers of each row so that they sum to 1. Put your own model in its place."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        """Load what `execute` needs, once for each instance: weights lie beside this file."""
        pb_utils.Logger.log_info(f"{args['model_name']} version {args['model_version']} is ready")

    def execute(self, requests):
        """Answer each request of a batch, in order. Rows of a request are the first dimension."""
        responses = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            sums = numbers.sum(axis=1, keepdims=True)
            if not np.all(sums):
                error = pb_utils.TritonError("a row of INPUT sums to 0", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", numbers / sums)]))
        return responses

    def finalize(self):
        """Close what `initialize` opened."""
'''
_CONFIG = """\
backend: "python"
# As many rows, of several requests, as `execute` gets at once.
max_batch_size: 64
dynamic_batching { }
# The shape of one row: -1 is any number.
input { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] }
# Each instance is a process of its own.
instance_group { count: 1 kind: KIND_CPU }
"""
_GOLDEN = """\
{
  "request": {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]},
  "response": {"outputs": [{"name": "OUTPUT", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]}
}
"""
INIT_OPTIONS = (REPOSITORY,)
_VALID_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
FILES = {CONFIG_FILE: _CONFIG, "1/model.py": _MODEL, f"{GOLDEN_REQUESTS}/first.json": _GOLDEN}


def init(arguments: Sequence[str]) -> int:
    """Write the model. Returns 0. Raises BadOption, and InvalidRequest for a folder that cannot be written."""
    values, words = read_values(INIT_OPTIONS, arguments)
    if len(words) != 1 or not _VALID_NAME.fullmatch(words[0]):
        raise BadOption("a name of letters, digits, '_', '-' and '.' is expected: trident init NAME")
    (name,) = words
    repository = Path(values[REPOSITORY.flag])
    folder = repository / name
    try:
        folder.mkdir(parents=True)
        for path, text in FILES.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
    except FileExistsError:
        raise BadOption(f"{folder} is there already: choose another name, or remove it") from None
    except OSError as error:
        raise InvalidRequest(f"{error.filename}: {error.strerror}") from error
    print(f"""\
{folder}/
  1/model.py           the model: it scales the numbers of each row so that they sum to 1
  config.pbtxt         its inputs and outputs, and how it batches
  golden/first.json    a request and its answer, which every load asks

serve it, again after each change:  trident serve {repository} --reload
ask it:                             trident request {name}
test it, without a server:          trident validate {repository}""")
    return 0
