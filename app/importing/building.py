"""Makes the folder of an imported model, runs it once as the server would, and compares it with the original."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trident.app.importing.sources import Options, Plan, run_original
from trident.core.backends.backend import LoadContext
from trident.core.backends.cpu_budget import available_cores, plan_threads
from trident.core.backends.registry import BackendRegistry
from trident.core.config.placement import placements
from trident.core.config.platforms import is_ensemble
from trident.core.config.request_check import RequestValidator
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.errors import NotInstalled, ServerError
from trident.core.http.sample_request import Sample, make_sample
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import OutputTensor
from trident.core.inference.tensors import BYTES, Array, Shape
from trident.core.repository.config import ModelCheck, check_model
from trident.core.repository.repository import CONFIG_FILE, ModelDirectory, version_path
from trident.core.scheduling.instance import run_once

_ROWS = 2
_MAX_BATCH_SIZE = 64
# Of the largest number of an output: what another order of the same sums makes of FP32.
_TOLERANCE = 1e-3


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
    """What the server would say of the folder. A model that says itself that it batches does so with more rows."""
    directory = ModelDirectory(name, folder, is_renamed=True)
    found = check_model(directory, backends)
    batches = any(config.max_batch_size > 1 for config, _ in found.valid)
    if plan.is_small_batched and batches and not (folder / CONFIG_FILE).exists():
        (folder / CONFIG_FILE).write_text(f"max_batch_size: {_MAX_BATCH_SIZE}\ndynamic_batching {{ }}\n")
        found = check_model(directory, backends)
    return found


@dataclass(frozen=True, slots=True)
class Trial:
    """One request to the model and its answer. `seconds` are those of the second run."""

    inputs: Mapping[str, Array]
    outputs: Sequence[OutputTensor]
    seconds: float


def try_model(
    plan: Plan,
    folder: Path,
    config: ModelConfig,
    spec: ModelSpec,
    backends: BackendRegistry,
    shapes: Mapping[str, Shape],
) -> Trial | str:
    """Load the model and ask it twice; or why it is not run. Raises ServerError for a model that fails."""
    if is_ensemble(config):
        return "it is not run, because it is an ensemble: trident validate checks it with its steps"
    sample = make_sample(spec, shapes=shapes)
    inputs = _inputs(sample)
    tensors = [
        InputTensor(each.name, each.datatype.name, array.shape, array)
        for each, array in zip(sample.inputs, inputs.values(), strict=True)
    ]
    placed = placements(config)[:1]
    threads = plan_threads(available_cores(), 1).intra_op_threads
    path = version_path(ModelDirectory(spec.name, folder, is_renamed=True), spec.version)
    with ExitStack() as loaded:
        try:
            model = backends.find(config).load(LoadContext(path, config, spec, placed, threads))
        except NotInstalled as error:
            return f"it is not run: {error.message}; {error.hint}"
        loaded.callback(model.close)
        instance = model.instance(placed[0])
        loaded.callback(instance.close)
        if plan.body:
            return plan.body
        for _ in range(2):
            request = InferenceRequest(
                spec.name, tensors, model_version=spec.version, parameters=dict(sample.parameters)
            )
            begin = time.perf_counter()
            (outputs,) = run_once(instance, [request], RequestValidator(spec).check)
            seconds = time.perf_counter() - begin
        copies = [OutputTensor(o.name, o.datatype, o.shape, np.array(o.array)) for o in outputs]
    return Trial(inputs, copies, seconds)


def _inputs(sample: Sample) -> dict[str, Array]:
    """Made-up tensors in the shapes of `sample`, with two rows where the model batches."""
    random = np.random.default_rng(0)
    rows = min(_ROWS, sample.spec.max_batch_size)
    found: dict[str, Array] = {}
    for each in sample.inputs:
        shape = (rows, *each.inner) if rows and len(each.inner) < len(each.shape) else each.shape
        if each.datatype is BYTES:
            found[each.name] = np.full(shape, b"text", object)
        elif each.datatype.kind in "iub":
            found[each.name] = random.integers(0, 2, shape).astype(each.datatype.dtype)
        elif each.datatype.name == "BF16":
            found[each.name] = np.full(shape, 0x3F80, each.datatype.dtype)
        else:
            found[each.name] = random.normal(size=shape).astype(each.datatype.dtype)
    return found


class Differs(Exception):
    """The model answers otherwise than its source; the argument says where."""


def compare(plan: Plan, trial: Trial, options: Options) -> float:
    """The largest difference from the answer of the source itself. Raises Differs, and ServerError if that cannot run
    here."""
    given, answered = options.scratch / "given.npz", options.scratch / "answered.npz"
    np.savez(given, allow_pickle=False, **{name: _plain(array) for name, array in trial.inputs.items()})
    run_original(options, plan.original, str(plan.original_file), str(given), str(answered))
    with np.load(answered, allow_pickle=False) as stored:
        originals = dict(stored)
    # Trees and packages have no names of Triton's form: theirs are numbers.
    pairs = [
        (output.name, _plain(output.array), originals[name])
        for number, output in enumerate(trial.outputs)
        for name in [output.name if output.name in originals else str(number)]
        if name in originals
    ]
    if not pairs:
        raise ServerError(f"the original answers {', '.join(originals)}, and the model {trial.outputs[0].name}")
    return max(_difference(*pair) for pair in pairs)


def _difference(name: str, ours: Array, original: Array) -> float:
    if ours.size != original.size:
        raise Differs(f"{name} has {ours.size} elements, and the original's {original.size}")
    original = original.reshape(ours.shape)
    if ours.dtype.kind in "USb" or original.dtype.kind in "USb":
        if not np.array_equal(ours.astype(str), original.astype(str)):
            raise Differs(f"{name} is {ours.ravel()[:3]}, and the original's {original.ravel()[:3]}")
        return 0.0
    distance = np.abs(ours.astype(float) - original.astype(float))
    worst = float(distance.max(initial=0.0))
    if not worst <= _TOLERANCE * max(1.0, float(np.abs(original.astype(float)).max(initial=0.0))):
        at = np.unravel_index(int(distance.argmax()), ours.shape)
        place = [int(index) for index in at]
        raise Differs(f"{name}{place} is {ours[at]:g}, and the original's {original[at]:g}")
    return worst


def _plain(array: Array) -> Array:
    """Texts as an array of a fixed width, which is stored without a pickle."""
    if array.dtype.kind != "O":
        return array
    texts = [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in array.ravel()]
    return np.array(texts, str).reshape(array.shape)
