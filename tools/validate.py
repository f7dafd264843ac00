"""`trident validate`: checks configurations and the files they name, makes a session of every version, runs golden
requests, and reports what is wrong.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from html import escape
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

from trident.adapters.common.options import SWITCH, BadOption, BadValue, Option, choice, integer
from trident.app.process.environment import process_environment
from trident.app.settings.groups import split_backend_settings
from trident.app.settings.server import SERVER_OPTIONS
from trident.app.terminal import counted, drawn
from trident.core.backends.backend import TryingBackend
from trident.core.backends.model_files import origins_in
from trident.core.backends.python.environment import CACHED, INSTALL
from trident.core.backends.registry import BACKEND_DIRECTORY, DEFAULT_MAX_BATCH_SIZE, BackendRegistry
from trident.core.config.autocomplete import normalize
from trident.core.config.ensemble import EnsembleStep, KnownModels
from trident.core.config.golden import GoldenRequest
from trident.core.config.platforms import GENAI as GENAI_BACKEND
from trident.core.config.platforms import TEXT as TEXT_BACKEND
from trident.core.config.problem import Problem
from trident.core.config.request_check import RequestValidator
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.cuda import gpu_ids
from trident.core.errors import NotInstalled, ServerError
from trident.core.lifecycle.golden_check import check_golden
from trident.core.observability.log import LogOptions, configure_logging, escaped
from trident.core.repository.check import check_model, warnings_of
from trident.core.repository.config import read_config
from trident.core.repository.layout_hints import no_models_hint
from trident.core.repository.location import Scheme, parse_location
from trident.core.repository.opener import SourceOpener
from trident.core.repository.repository import ModelDirectory, scan_repository, select_versions, version_directories
from trident.core.repository.sources import Fetched, Source, SourceFile
from trident.tools.options import CACHE_OPTIONS, CloudCache, read_cloud_cache, read_values
from trident.tools.pickles import scan_pickles
from trident.tools.trial import first_instance

_log = logging.getLogger("trident.validate")
_own = Option.of_command
_GRAPHS = (
    "Draw the valid ensembles to the standard output, and write the report to the error output. dot is graphviz's."
)
_RUNS = "Also run initialize and finalize of models in Python, each in its process; without it, they are only imported."
_FORMAT = _own("format", choice("format", "text", "json"), "text", "Of the report; default text.")
_GRAPH = _own("graph", choice("graph", "text", "svg", "dot"), "", _GRAPHS)
_RUN = _own("run", SWITCH, False, _RUNS)
_OF_SERVE = ("model_config_name", "disable_auto_complete_config", "backend_config", "backend_directory", "gpu_missing")
ACCEPTED = (_FORMAT, _GRAPH, _RUN, *(SERVER_OPTIONS[name] for name in _OF_SERVE), *CACHE_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateOptions:
    """`repositories` are values of --model-repository; `backend_config`, `backend_directory` and `gpu_missing` as in
    ServerSettings. `graph` is the form of the drawings of ensembles, "" for none.
    """

    repositories: tuple[str, ...]
    format: str = "text"
    graph: str = ""
    run: bool = False
    config_name: str = ""
    auto_complete: bool = True
    backend_config: tuple[str, ...] = ()
    backend_directory: str = SERVER_OPTIONS["backend_directory"].default
    gpu_missing: str = SERVER_OPTIONS["gpu_missing"].default
    cache: CloudCache = field(default_factory=CloudCache)


def read_validate_options(
    arguments: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})
) -> ValidateOptions:
    """The options that the arguments after `validate` give; those of the cache also come from variables.

    Raises BadOption.
    """
    values, repositories = read_values(ACCEPTED, arguments)
    if not repositories:
        raise BadOption("a model repository is missing: trident validate REPO")
    return ValidateOptions(
        repositories=tuple(repositories),
        format=values["format"],
        graph=values["graph"],
        run=values["run"],
        config_name=values["model-config-name"],
        auto_complete=not values["disable-auto-complete-config"],
        backend_config=values["backend-config"],
        backend_directory=values["backend-directory"],
        gpu_missing=values["gpu-missing"],
        cache=read_cloud_cache(values, environment),
    )


def validate(arguments: Sequence[str]) -> int:
    """Print the report, and the drawings if they are asked for.

    The exit status is 1 if there is a problem, otherwise 0, even if there are warnings. Raises BadOption.
    """
    options = read_validate_options(arguments, process_environment())
    # Warnings to stderr, and no errors: the report contains them.
    configure_logging(LogOptions(info=False, error=False))
    check = RepositoryCheck(options)
    opener = options.cache.opener()

    def open_repository(text: str) -> Repository:
        if parse_location(text).scheme is Scheme.LOCAL:
            return LocalRepository(text)
        return CloudRepository(opener, text, options.config_name)

    try:
        report = examine(options.repositories, check, open_repository)
    finally:
        opener.stop()
    if options.graph:
        broken = {finding.model for finding in report.findings}
        graphs = [(spec, steps) for spec, steps in check.known.ensembles if spec.name not in broken]
        sys.stdout.write({"text": text_drawing, "svg": svg_drawing, "dot": dot_drawing}[options.graph](graphs))
    output = sys.stderr if options.graph else sys.stdout
    output.write(json_report(report) if options.format == "json" else text_report(report))
    return 1 if report.findings else 0


# --- repositories


class LocalRepository:
    """The models below `path`."""

    def __init__(self, path: str) -> None:
        """Raises RepositoryUnavailable if `path` is not a readable directory."""
        self._directories = {directory.name: directory for directory in scan_repository(Path(path))}

    def models(self) -> Sequence[str]:
        return list(self._directories)

    def directory(self, model: str) -> AbstractContextManager[ModelDirectory]:
        """Give the model on the local disk while the context lasts."""
        return nullcontext(self._directories[model])


class CloudRepository:
    """The models at `location`, fetched through the cache of `opener`, with a progress bar on a terminal. One thread.

    Its methods raise ServerError as a Source does. `models` also does so for a prefix that does not exist.
    """

    def __init__(self, opener: SourceOpener, location: str, config_name: str) -> None:
        self._progress = opener.progress
        self._source: Source = opener.open(location)
        self._config_name = config_name

    def models(self) -> Sequence[str]:
        found = self._source.models()
        if not found:
            self._source.check_exists()
        return found

    @contextmanager
    def directory(self, model: str) -> Iterator[ModelDirectory]:
        """The model with the versions that its policy selects; it stays on the disk while the context lasts."""
        files = self._source.files(model) or ()
        with ExitStack() as held:
            shared = self._fetch(held, model, files, None)
            around = Path(tempfile.mkdtemp(prefix="trident-validate-"))
            held.callback(shutil.rmtree, around, ignore_errors=True)
            # Copied, not linked: a file that a configuration names must lie within its model directory, links followed.
            shutil.copytree(shared.directory.path, around, dirs_exist_ok=True)
            for version in self._selected(shared.directory):
                fetched = self._fetch(held, model, files, version)
                target = fetched.directory.path / str(version)
                shutil.rmtree(around / str(version), ignore_errors=True)
                os.symlink(target, around / str(version), target_is_directory=True)
            yield replace(shared.directory, path=around)

    def _fetch(self, held: ExitStack, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        with drawn(self._progress):
            fetched = self._source.fetch(model, files, version)
            held.callback(fetched.release)
        return fetched

    def _selected(self, directory: ModelDirectory) -> Sequence[int]:
        """The versions to fetch; none if the configuration is wrong, which the check of the model reports."""
        try:
            config = read_config(directory, config_name=self._config_name)
            normalize(config, ())
            return select_versions(config, version_directories(directory), directory.name)
        except ServerError:
            return ()


Repository = LocalRepository | CloudRepository

# --- their examination


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem or warning. `model` is empty for a problem of the repository itself; `hint` may be empty."""

    repository: str
    model: str
    path: str
    message: str
    hint: str


@dataclass(slots=True)
class Report:
    """`models` is the number of examined models, good and bad; `warnings` keep no model from loading.

    `tasks` are what the text models among them do, by model.
    """

    models: int = 0
    findings: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    tasks: Mapping[str, str] = field(default_factory=dict)


def examine(
    repositories: Iterable[str], check: RepositoryCheck, open_repository: Callable[[str], Repository] = LocalRepository
) -> Report:
    """Report the problems and warnings that `check` finds in each model and between them, and those of the repositories
    themselves."""
    report = Report(tasks=check.tasks)
    places: dict[str, str] = {}
    for location in repositories:
        try:
            repository = open_repository(location)
            models = repository.models()
        except ServerError as error:
            report.findings.append(Finding(location, "", location, error.message, error.hint or ""))
            continue
        if not models:
            text = f"there is no model in {location}"
            report.findings.append(Finding(location, "", location, text, no_models_hint(location)))
        for model in models:
            report.models += 1
            path = _joined(location, model)
            other = places.setdefault(model, location)
            if other != location:
                hint = f"the other model is {_joined(other, model)}"
                report.findings.append(
                    Finding(location, model, path, "model appears in two or more repositories", hint)
                )
            try:
                with repository.directory(model) as directory:
                    report.findings += _findings(location, directory, check(directory))
                    report.warnings += _findings(location, directory, check.warnings(directory))
            except ServerError as error:
                report.findings.append(Finding(location, model, path, error.message, error.hint or ""))
    for model, problems in check.together().items():
        report.findings += [Finding(places[model], model, each.path, each.message, each.hint) for each in problems]
    return report


def _findings(location: str, directory: ModelDirectory, problems: Iterable[Problem]) -> list[Finding]:
    """The findings of a model; paths in the directory are shown as paths in the repository."""
    on_disk, shown = str(directory.path), _joined(location, directory.name)
    return [
        Finding(
            location, directory.name, each.path.replace(on_disk, shown), each.message.replace(on_disk, shown), each.hint
        )
        for each in problems
    ]


def _joined(location: str, model: str) -> str:
    return f"{location.rstrip('/')}/{model}" if "://" in location else str(Path(location, model))


# --- one model after the other


class RepositoryCheck:
    """Finds the problems and warnings of one model after the other, then the problems of the ensembles among them.

    `backends` has the names of the models that use a backend, `not_installed` why the framework of one cannot be used.
    Its maker raises BadOption.
    """

    def __init__(self, options: ValidateOptions) -> None:
        settings = split_backend_settings(options.backend_config)
        settings.setdefault("", {}).setdefault(BACKEND_DIRECTORY, options.backend_directory)
        # A check must not change the machine unless it is asked to.
        settings.setdefault("python", {}).setdefault(INSTALL, CACHED)
        try:
            for values in settings.values():
                integer(0).parse(values.get(DEFAULT_MAX_BATCH_SIZE, "0"))
        except BadValue as error:
            raise BadOption.of("--backend-config", str(error)) from None
        self.known = KnownModels()
        self.tasks: dict[str, str] = {}
        self.backends: dict[str, list[str]] = {}
        self.not_installed: dict[str, NotInstalled] = {}
        self._options = options
        self._backends = BackendRegistry(settings, gpu_ids=gpu_ids(), cpu_instead=options.gpu_missing == "cpu")
        self._warnings: list[Problem] = []

    def __call__(self, directory: ModelDirectory) -> Sequence[Problem]:
        self.known.note_name(directory.name)
        found = check_model(
            directory,
            self._backends,
            config_name=self._options.config_name,
            auto_complete=self._options.auto_complete,
            run_golden=partial(golden_problems, self._backends, initialize=self._options.run),
        )
        self._warnings = found.warnings
        if found.backend:
            self.backends.setdefault(found.backend, []).append(directory.name)
        for config, spec in found.valid:
            self.known.note(config, spec)
            if config.backend == TEXT_BACKEND:
                self.tasks[directory.name] = config.parameters["task"].string_value
            elif config.backend == GENAI_BACKEND:
                self.tasks[directory.name] = "text-generation"
        for path, error in found.unchecked:
            self.not_installed[found.backend] = error
            _log.warning(
                "version %s of model '%s' was checked without its framework, and not loaded: %s (%s)%s",
                path.name,
                path.parent.name,
                error.message,
                error.hint,
                "".join(f"; '{name}' was written by {origin}" for name, origin in origins_in(path).items()),
            )
        return found.problems

    def warnings(self, directory: ModelDirectory) -> Sequence[Problem]:
        """The warnings of the model in `directory`, which was checked last; one that concerns several versions once."""
        pickles = [
            Problem(str(each.path), each.found, "it runs when it is read: load it only if you trust its author")
            for each in scan_pickles(directory.path)
            if each.is_dangerous
        ]
        return [*self._warnings, *warnings_of(directory, config_name=self._options.config_name), *pickles]

    def together(self) -> Mapping[str, Sequence[Problem]]:
        """The problems of ensembles with the models of their steps, by ensemble."""
        return self.known.problems()


def golden_problems(
    backends: BackendRegistry,
    path: Path,
    config: ModelConfig,
    spec: ModelSpec,
    golden: Sequence[GoldenRequest],
    *,
    initialize: bool = False,
) -> Sequence[Problem]:
    """Load the version in directory `path`, run each of `golden` on its first instance, and free the version.

    Without a golden request, a model that is code is imported, and with `initialize` initialized.
    """
    problems: list[Problem] = []
    if not golden:
        try:
            backend = backends.find(config)
            if isinstance(backend, TryingBackend):
                backend.try_model(path, config, spec, initialize=initialize)
        except NotInstalled as error:
            _log.warning("model '%s' was not imported: %s (%s)", config.name, error.message, error.hint)
        except ServerError as error:
            problems.append(_problem(str(path / config.default_model_filename), error))
        return problems
    try:
        with first_instance(backends, path, config, spec) as instance:
            for request in golden:
                try:
                    check_golden(instance, spec, RequestValidator(spec).check, request)
                except ServerError as error:
                    problems.append(_problem(f"golden/{request.name}", error))
    except NotInstalled as error:
        _log.warning("the golden requests of model '%s' were not run: %s (%s)", config.name, error.message, error.hint)
    except ServerError as error:
        problems.append(_problem(str(path), error))
    return problems


def _problem(path: str, error: ServerError) -> Problem:
    # A model's error has lines with its places.
    return Problem(path, " ".join(error.message.split()), error.hint or "")


# --- the report
_INDENT = "  "
_WARNINGS = "Warnings. The models load all the same; where no other effect is named, a setting has none.\n"
_LONGEST_PATH = 44


def text_report(report: Report) -> str:
    """One block per model: its name, then path and message of each problem, with the hint below the message.

    Blocks of the same form with the warnings follow.
    """
    blocks = _blocks(report.findings)
    if report.warnings:
        blocks += [_WARNINGS, *_blocks(report.warnings)]
    total = f"{counted(report.models, 'model')}, no problems"
    if report.findings:
        bad = len({(each.repository, each.model) for each in report.findings if each.model})
        total = f"{counted(len(report.findings), 'problem')}, in {bad} of {counted(report.models, 'model')}"
    if report.warnings:
        total += f"; {counted(len(report.warnings), 'warning')}"
    if report.tasks:
        blocks.append("".join(f"{escaped(model)}: {task}\n" for model, task in report.tasks.items()))
    return "\n".join([*blocks, f"{total}\n"])


def json_report(report: Report) -> str:
    """A JSON object: the number of models, and the lists of problems and warnings.

    Each entry has repository, model, path, message and hint. Text models have their tasks in an object.
    """
    problems, warnings = ([asdict(each) for each in found] for found in (report.findings, report.warnings))
    document = {"models": report.models, "problems": problems, "warnings": warnings}
    return json.dumps(document | ({"tasks": report.tasks} if report.tasks else {}), indent=2) + "\n"


def _blocks(findings: Iterable[Finding]) -> list[str]:
    blocks = []
    for place, found in groupby(findings, key=lambda each: (each.repository, each.model)):
        name = f"{place[1]} ({place[0]})" if place[1] else place[0]
        blocks.append(f"{escaped(name)}\n{_block(list(found))}")
    return blocks


def _block(findings: list[Finding]) -> str:
    paths = [escaped(each.path) for each in findings]
    # One long path must not push all messages off the screen: the message of a long path is on the next line.
    width = max((len(path) for path in paths if len(path) <= _LONGEST_PATH), default=0)
    lines = []
    for path, each in zip(paths, findings, strict=True):
        message = escaped(" ".join(each.message.split()))
        margin = _INDENT + " " * width + _INDENT
        fits = len(path) <= width
        lines += [f"{_INDENT}{path:<{width}}{_INDENT}{message}"] if fits else [_INDENT + path, margin + message]
        if each.hint:
            lines.append(f"{margin}hint: {escaped(each.hint)}")
    return "\n".join(lines) + "\n"


# --- drawings of ensembles that are valid: without cycles, and each tensor has one source

Graphs = Sequence[tuple[ModelSpec, Sequence[EnsembleStep]]]


def text_drawing(graphs: Graphs) -> str:
    """A line for each step, with the number of those that run before it."""
    blocks = []
    for ensemble, steps in graphs:
        lines = [f"{ensemble.name}: {', '.join(ensemble.inputs)} -> {', '.join(ensemble.outputs)}"]
        width = max(len(_title(step)) for step in steps)
        for number, level in enumerate(_levels(steps), 1):
            for step in (steps[index] for index in level):
                flow = f"{', '.join(sorted(step.sources))} -> {', '.join(sorted(step.results))}"
                lines.append(f"  {number}  {_title(step):<{width}}  {flow}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def dot_drawing(graphs: Graphs) -> str:
    """A digraph for each ensemble, in graphviz's language."""
    lines = []
    for ensemble, steps in graphs:
        lines += [f"digraph {json.dumps(ensemble.name)} {{", "  rankdir=LR;", "  node [shape=box];"]
        lines += ['  inputs [label="request" shape=oval];', '  outputs [label="response" shape=oval];']
        lines += [f"  step{index} [label={json.dumps(_title(step))}];" for index, step in enumerate(steps)]
        names = {-1: "inputs", len(steps): "outputs"}
        for (start, end), tensors in _edges(ensemble, steps).items():
            nodes = [names.get(each, f"step{each}") for each in (start, end)]
            lines.append(f"  {' -> '.join(nodes)} [label={json.dumps(', '.join(tensors))}];")
        lines += ["}", ""]
    return "\n".join(lines)


_COLUMN, _ROW, _WIDTH, _HEIGHT = 320, 72, 160, 36


def svg_drawing(graphs: Graphs) -> str:
    """One picture with the ensembles below each other. The steps that run at the same time are in one column."""
    parts, top, widest = list[str](), 0, 0
    for ensemble, steps in graphs:
        columns = [[-1], *_levels(steps), [len(steps)]]
        rows = max(map(len, columns))
        places = {
            node: (_COLUMN * number, top + _HEIGHT + _ROW * row + _ROW * (rows - len(column)) // 2)
            for number, column in enumerate(columns)
            for row, node in enumerate(column)
        }
        parts.append(f'<text x="0" y="{top + 20}" font-weight="bold">{escape(ensemble.name)}</text>')
        for (start, end), tensors in _edges(ensemble, steps).items():
            (x1, y1), (x2, y2) = places[start], places[end]
            x1, y1, y2 = x1 + _WIDTH, y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
            middle = (x1 + x2) // 2
            curve = f"M{x1},{y1} C{middle},{y1} {middle},{y2} {x2},{y2}"
            parts.append(f'<path d="{curve}" fill="none" stroke="gray"/>')
            parts.append(_centred(middle, (y1 + y2) // 2 - 4, ", ".join(tensors)))
        for node, (x, y) in places.items():
            title = {-1: "request", len(steps): "response"}.get(node) or _title(steps[node])
            box = f'x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4" fill="white" stroke="black"'
            parts += [f"<rect {box}/>", _centred(x + _WIDTH // 2, y + _HEIGHT // 2 + 4, title)]
        top += _ROW * rows + _HEIGHT
        widest = max(widest, len(columns))
    size = f'viewBox="-8 0 {_COLUMN * widest - _WIDTH + 16} {top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, *parts, "</svg>", ""])


def _centred(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="middle">{escape(text)}</text>'


def _title(step: EnsembleStep) -> str:
    return step.model if step.version == -1 else f"{step.model}:{step.version}"


def _writers(steps: Sequence[EnsembleStep]) -> dict[str, int]:
    """The index of the step that writes a tensor."""
    return {tensor: index for index, step in enumerate(steps) for _, tensor in step.outputs}


def _levels(steps: Sequence[EnsembleStep]) -> list[list[int]]:
    """The indices of the steps: first of those that need no others, then of those that need only them, and so on."""
    writers, levels, left = _writers(steps), list[list[int]](), list(range(len(steps)))
    while left:
        ready = [index for index in left if not any(writers.get(tensor) in left for tensor in steps[index].sources)]
        levels.append(ready)
        left = [index for index in left if index not in ready]
    return levels


def _edges(ensemble: ModelSpec, steps: Sequence[EnsembleStep]) -> dict[tuple[int, int], list[str]]:
    """The tensors between two steps, by their indices; -1 is the request, and the number of steps the response."""
    writers = _writers(steps)
    edges: dict[tuple[int, int], list[str]] = {}
    for index, sources in enumerate([*(sorted(step.sources) for step in steps), ensemble.outputs]):
        for tensor in sources:
            edges.setdefault((writers.get(tensor, -1), index), []).append(tensor)
    return edges
