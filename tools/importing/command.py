"""The commands that make a model in a repository: `trident import` makes it of what another program wrote, and asks it
once; `trident init` writes a Python model to begin with."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf.text_format import MessageToString

from trident.adapters.common.options import FILE, FOLDER, SWITCH, TEXT, BadOption, BadValue, Kind, Option
from trident.app.process.environment import process_environment
from trident.app.terminal import drawn
from trident.core.backends.python.environment import CACHE_DIRECTORY
from trident.core.backends.registry import BackendRegistry
from trident.core.config.spec import ModelSpec
from trident.core.cuda import gpu_ids
from trident.core.errors import InvalidRequest, ServerError
from trident.core.http.sample_request import Place, make_sample, parse_shape, write_request
from trident.core.inference.tensors import BY_NAME, BYTES, Shape, shape_text
from trident.core.observability.log import LogOptions, configure_logging, say
from trident.core.repository.check import ModelCheck, check_model
from trident.core.repository.location import Scheme, parse_location
from trident.core.repository.repository import BYTECODE, CONFIG_FILE, GOLDEN_REQUESTS, ModelDirectory
from trident.tools.importing.comparison import print_comparison, try_model
from trident.tools.importing.sources import Options, Plan, plans_of
from trident.tools.options import CACHE_OPTIONS, CloudCache, read_cloud_cache, read_values

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
            raise InvalidRequest(f"{source} has no model")
        if values[_NAME.flag] and len(plans) > 1:
            raise BadOption.of("--name", f"{words[0]} has {len(plans)} models, which keep their names")
        environments = str(Path(cache.path, "environments"))
        backends = BackendRegistry({"": {}, "python": {CACHE_DIRECTORY: environments}}, gpu_ids=gpu_ids())
        status = 0
        for plan in plans:
            # A server passes over names that begin with a dot.
            name = _FITS.sub("_", values[_NAME.flag] or plan.name or source.stem).lstrip(".") or "model"
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
    """Make one model, or another one instead if it is wrong. Returns 1 if that is wrong."""
    status = _make(plan, name, target, options, backends, values)
    if status != _OTHERWISE or plan.instead is None or target.exists():
        return min(status, 1)
    say("it is made in another way:")
    return min(_make(plan.instead(), name, target, options, backends, values), 1)


# The model may be made in another way, or is broken, so that its library should not read it.
_OTHERWISE, _BROKEN = 1, 2


def _make(
    plan: Plan, name: str, target: Path, options: Options, backends: BackendRegistry, values: Mapping[str, Any]
) -> int:
    """Make one model beside its place, `target`, and move it there. Returns 0, _OTHERWISE or _BROKEN."""
    is_dry = values[_DRY_RUN.flag]
    if target.exists() and not is_dry:
        raise BadOption(f"{target} is there already: choose another --name, or remove it")
    if not is_dry:
        target.parent.mkdir(parents=True, exist_ok=True)

    def tell(text: str, hint: str | None = None) -> None:
        shown = f"{text}\n  hint: {hint}" if hint else text
        say(shown.replace(str(folder), str(target)))

    # A server passes over names that begin with a dot.
    beside = None if is_dry else target.parent.absolute()
    with tempfile.TemporaryDirectory(prefix=".import-", dir=beside) as staging:
        folder = Path(staging, name)
        tell("; ".join([f"{name}: {plan.what}", *plan.notes]))
        try:
            build(plan, folder, options.scratch, link=values[_LINK.flag])
        except OSError as error:
            raise InvalidRequest(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
        is_run = is_dry or not values[_NO_RUN.flag]
        if is_run and (folder / "requirements.txt").is_file() and any(folder.glob("*/model.py")):
            tell("its environment is made by pip, unless it was before, which takes a minute")
        if is_run or plan.is_small_batched:
            found = check(folder, name, plan, backends)
        if not is_run:
            _place(folder, target, values[_SIGN.flag])
            return 0
        for problem in found.problems:
            tell(f"error: {problem.message}", problem.hint)
        if found.problems:
            is_whole = plan.original == "pickled" or all(each.is_unsupported for each in found.problems)
            return _OTHERWISE if is_whole else _BROKEN
        for warning in found.warnings:
            tell(f"warning: {warning.message}", warning.hint)
        for config, _ in found.valid[-1:]:
            fixed = [f"{each.name} {shape_text(each.dims)}" for each in config.input if each.dims[:1] not in ([], [-1])]
            if plan.is_small_batched and not config.max_batch_size and fixed:
                tell(f"it does not batch, as its first dimension is fixed: {', '.join(fixed)}", _VARYING)
        for _, missing in found.unchecked:
            tell(f"it is not run: {missing.message}", missing.hint)
        if is_dry:
            tell(f"\nnothing was made, because of --dry-run\n{_tree(folder)}")
            for config, _ in found.valid[-1:]:
                tell(f"\nits configuration, as the server completes it\n{MessageToString(config)}")
            return 0
        status, example = 0, ""
        for config, spec in found.valid[-1:] if not found.unchecked else []:
            shapes = dict(zip(spec.inputs, (shape for _, shape in options.inputs), strict=False))
            example = _request(plan, spec, shapes)
            try:
                trial = try_model(plan, folder, config, spec, backends, shapes)
            except ServerError as error:
                tell(f"error: it loads, and fails: {error.message}", error.hint)
                return 1
            if isinstance(trial, str):
                tell(trial)
            else:
                status = print_comparison(plan, trial, options)
        if status and not values[_KEEP.flag]:
            if plan.instead is None:
                tell("nothing was made: --keep makes it all the same")
            return status
        placed = _place(folder, target, values[_SIGN.flag])
        tell(f"\n{_tree(placed)}\n\nserve it: trident serve {target.parent}")
    if example:
        say(f"ask it{', with a body of yours' if plan.body else ''}:\n{example}")
    return status


def _place(folder: Path, target: Path, key: str) -> Path:
    """Move a model to its place, signed if there is a key. Returns that place."""
    if key:
        from trident.core.repository.signature import sign_model

        for compiled in list(folder.rglob(BYTECODE)):  # the trial of a Python model wrote it
            shutil.rmtree(compiled)
        sign_model(folder, Path(key))
    return folder.rename(target)


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
