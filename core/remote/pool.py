"""The Engine protocol over several engines, as a front end has it.

Source: docs/processes.md "Several engines".
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from hashlib import blake2b
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from trident.core.config.spec import ModelSpec
from trident.core.engine.protocol import Engine, ModelChange
from trident.core.errors import InvalidRequest, ModelNotFound, ServerError
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import RegionInput
from trident.core.inference.tensors import Array, Buffer
from trident.core.interprocess.frames import LARGE
from trident.core.lifecycle.state import IndexEntry, Phase, ServingPhase
from trident.core.observability.metrics.snapshot import MetricsSnapshot
from trident.core.observability.slowest_requests import VersionRequests, merged_requests
from trident.core.observability.statistics import VersionStatistics
from trident.core.observability.tracing.trace import TraceEvent
from trident.core.observability.tracing.trace_gate import TraceGate
from trident.core.remote.calls import CALLS, Call, EngineGone
from trident.core.remote.connection import Connection, Link
from trident.core.remote.control_log import REGISTER, Change, ControlLog, Pause, Subject, own_changes
from trident.core.remote.engine_client import RemoteEngine, RemoteModel
from trident.core.remote.merged import merged_index, merged_metrics, merged_version_statistics


def least_busy(in_flight: Sequence[int], turn: int) -> int:
    """The index of the less busy of two: with two engines of both, with more of a pair that changes with `turn`.

    Comparing two is enough (the load of the fullest grows with the logarithm of the logarithm of their number), and
    costs the same for any number. Equally busy engines take turns.
    """
    count = len(in_flight)
    first = turn % count
    second = (first + 1 + turn // count % (count - 1)) % count if count > 1 else first
    return second if in_flight[second] < in_flight[first] else first


def home_of(key: str, engines: Sequence[int]) -> int:
    """Which of `engines`, by their numbers in the server, has the state that `key` names.

    All front ends come to the same answer, without a word between them. If an engine is missing, only what had its
    state there moves (rendezvous hashing).
    """
    text = key.encode("utf-8", "replace")
    return max(range(len(engines)), key=lambda position: blake2b(b"%d %s" % (engines[position], text)).digest())


# For a server whose models are many, and loaded by request: a copy of each in every engine would multiply the memory.
# Source: docs/processes.md "Several engines".


_log = logging.getLogger("trident.engine")

_CHOICE: Subject = ("choice of an engine",)


class ModelAssignment:
    """Any thread or greenlet may call `make`. Front ends in other processes see the same placement, through `folder`.

    An engine has a control log of its own: of the models that are its own. From it, it loads them again when it was
    started again.
    """

    def __init__(self, engines: Sequence[RemoteEngine], folder: Path, pause: Pause) -> None:
        self._engines = engines
        self._shared = ControlLog(folder)
        self._logs = [ControlLog(own_changes(folder, number)) for number in range(len(engines))]
        self._pause = pause

    def make(self, change: Change) -> None:
        """Load a model in its engine, or in the one that is best for a new model; or unload it.

        Raises what that engine raises, and EngineGone if no engine is there.
        """
        with self._shared.locked(change.subject, self._pause):
            if change.call.mark.change is ModelChange.UNLOAD:
                self._unload(change)
            else:
                self._load(change)

    def _load(self, change: Change) -> None:
        with ExitStack() as stack:
            with self._shared.locked(_CHOICE, self._pause):
                number = self._home(change.subject)
                if number is None:
                    number = self._emptiest()
                stack.enter_context(self._logs[number].begun(change))  # the next choice counts it
            with self._logs[number].locked(change.subject, self._pause):
                self._engines[number].begin(change.call, change.arguments).result()
                self._logs[number].note(change)

    def _unload(self, change: Change) -> None:
        number = self._home(change.subject)
        numbers = range(len(self._engines)) if number is None else [number]
        for each in numbers:
            engine, log = self._engines[each], self._logs[each]
            with log.locked(change.subject, self._pause):
                try:
                    engine.begin(change.call, change.arguments).result()
                except EngineGone as error:
                    # Its memory is free. If its next process has the model already, it finds the note.
                    _log.warning("'%s' was to be unloaded from an engine that is not there: %s", change.what, error)
                    log.note(change)
                else:
                    log.forget(change.subject)

    def _home(self, subject: Subject) -> int | None:
        """The number of the engine that has the model, None for a model that none has."""
        for number, log in enumerate(self._logs):
            last = log.last(subject)
            if last is not None and last.call.mark.change is ModelChange.LOAD:
                return number
        return None

    def _emptiest(self) -> int:
        """The engine with the fewest models. The memory is that of one machine, wherever a model is; the number of
        models is all that is known beforehand of the work that they will be.
        """
        there = [number for number, engine in enumerate(self._engines) if engine.connection is not None]
        if not there:
            raise self._engines[0].no_engine()
        return min(there, key=lambda number: len(self._logs[number].loaded()))


class Broadcast:
    """Any thread or greenlet may call `make`. Front ends in other processes make changes through the same folder.

    Changes of the same thing are made one after the other, whichever front end was asked for them. One engine makes a
    change first, the others only if it succeeded: most changes that cannot be made fail there, and what has to be
    downloaded for it is downloaded once.
    """

    def __init__(self, engines: Sequence[RemoteEngine], folder: Path, pause: Pause) -> None:
        """`folder` has the control log, from which an engine that was away learns what it has missed."""
        self._engines = engines
        self._log = ControlLog(folder)
        self._pause = pause

    def make(self, change: Change) -> None:
        """Have all engines that are there make `change`, and note it for the others.

        Raises what the first engine raises, and EngineGone if there is none. If a later one refuses, the earlier ones
        go back, and its error is raised.
        """
        with self._log.locked(change.subject, self._pause):
            self._make(change)

    def finish_unfinished(self) -> None:
        """Make the changes that a front end had begun when it died, and that only some engines may have. Blocks."""
        for change in self._log.unfinished():
            with self._log.locked(change.subject, self._pause):
                if all(change.subject != each.subject for each in self._log.unfinished()):
                    continue  # another front end was making it, and is done
                _log.warning("'%s' was being changed when a front end died: it is changed again", change.what)
                try:
                    self._make(change)
                except ServerError as error:
                    _log.error("'%s' could not be changed again: %s", change.what, error.message)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._log.unfinished())

    def _make(self, change: Change) -> None:
        untold = self._untold([])
        if not untold:
            raise self._engines[0].no_engine()
        first = untold[0]
        told = [first.connection]
        back = self._way_back(first, change)
        # Loads take long enough for a front end to die meanwhile; other changes take less than a record of them.
        with self._log.begun(change) if change.is_of_model else nullcontext():
            first.begin(change.call, change.arguments).result()
            made = [first]
            self._tell_others(change, told, made, back)
            self._log.note(change)
            # An engine that connects after the next look finds the note: it reads the log again when all front ends
            # have connected.
            self._tell_others(change, told, made, back)

    def _untold(self, told: Sequence[Connection | None]) -> list[RemoteEngine]:
        """The engines that are there and whose present process was not told."""
        return [each for each in self._engines if each.connection is not None and each.connection not in told]

    def _tell_others(
        self, change: Change, told: list[Connection | None], made: list[RemoteEngine], back: Change | None
    ) -> None:
        """Tell all others at once. If one refuses, those in `made` go back and its error is raised."""
        while others := self._untold(told):
            refusal: ServerError | None = None
            asked = []
            for engine in others:
                told.append(engine.connection)
                try:
                    asked.append((engine, engine.begin(change.call, change.arguments)))
                except EngineGone:
                    continue
            for engine, call in asked:
                try:
                    call.result()
                    made.append(engine)
                except EngineGone as error:  # its next process will find the change in the log
                    _log.warning("an engine has ended while it had to make a change: %s", error.message)
                except ServerError as error:
                    refusal = error
            if refusal is not None:
                self._go_back(change, made, back)
                raise refusal

    def _way_back(self, engine: RemoteEngine, change: Change) -> Change | None:
        """The change that brings back what was before `change`; None if it needs none, or there is none."""
        name = change.call.name
        if name in REGISTER:
            return Change(CALLS["unregister_regions"], [REGISTER[name], change.arguments[0]])
        if change.call.mark.change is not ModelChange.LOAD:
            return None
        model = change.arguments[0]
        earlier = self._log.last(change.subject)
        if earlier is not None:
            return earlier
        try:
            engine.is_model_ready(model)
        except ServerError:
            return Change(CALLS["unload_model"], [model, False, False])
        return Change(CALLS["load_model"], [model, {}])

    def _go_back(self, change: Change, made: Sequence[RemoteEngine], back: Change | None) -> None:
        if back is None:
            return
        for engine in made:
            try:
                engine.begin(back.call, back.arguments).result()
            except ServerError as error:
                _log.error("'%s' is not the same in all engines now: %s", change.what, error.message)


class Candidate(NamedTuple):
    """An engine that serves the model: its number in the server, itself, and the model there."""

    number: int
    engine: RemoteEngine
    model: RemoteModel


class PooledModel:
    """The model of all `candidates`, until the engines or their models change. Any thread may submit.

    A request of a sequence goes to the engine that has its state, and every request for a model whose answers an engine
    keeps, or whose responses have the order of the requests, goes to one engine; any other request to the engine with
    the fewest in flight.
    """

    cached_answer: None = None

    def __init__(self, candidates: Sequence[Candidate], *, is_pinned: bool) -> None:
        """`candidates` is not empty. With `is_pinned` one of them gets all requests."""
        self._candidates = list(candidates)
        first = candidates[0].model
        self.spec: ModelSpec = first.spec
        self.handover = first.handover
        self._numbers = [each.number for each in candidates]
        self._turns = itertools.count()
        if is_pinned:
            self._keep(home_of(f"model {first.spec.name}", self._numbers))

    def _keep(self, position: int) -> None:
        self._candidates = [self._candidates[position]]
        self._numbers = [self._candidates[0].number]

    def submit(self, pending: PendingRequest) -> None:
        self._chosen(pending.request).model.submit(pending)

    def _chosen(self, request: InferenceRequest) -> Candidate:
        candidates = self._candidates
        if len(candidates) == 1:
            return candidates[0]
        if request.correlation_id:
            return candidates[home_of(f"sequence {request.correlation_id}", self._numbers)]
        if type(request.inputs) is list:
            found = self._with_memory_of(request)
            if found is not None:
                return found
        return candidates[least_busy([each.engine.in_flight for each in candidates], next(self._turns))]

    def _with_memory_of(self, request: InferenceRequest) -> Candidate | None:
        """The candidate that can read the first large input in place; None if it would be copied anyway."""
        content = _large_input(request)
        if content is None:
            return None
        return next((each for each in self._candidates if each.engine.has_in_memory(content)), None)


def _large_input(request: InferenceRequest) -> Buffer | Array | None:
    for tensor in request.inputs:
        if type(tensor) is not RegionInput and tensor.nbytes >= LARGE:
            return tensor.data
    return None


P = ParamSpec("P")
R = TypeVar("R")

# The number of a hold in the first engine; below it there are no clients' versions.
_FIRST_HOLD = -2
_FIRST_TRACE = 1
# A front end that starts does not wait longer for an engine that is not there.
_MISSING_SECONDS = 10.0
_LOOK_SECONDS = 0.1
# The order in which engines get ready; what the slowest has reached is what all have.
_PHASES = (Phase.ENGINE_DOWN, Phase.STARTING, Phase.LOADING, Phase.FAILED, Phase.EXITING, Phase.READY)
_STILL_LOADING = frozenset((Phase.STARTING, Phase.LOADING))

MakeLink = Callable[[], Link]


def _any(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[EnginePool, P], R]:
    """The method of the pool that asks the first engine which can answer. Raises what the first of all raises."""
    call = CALLS[method.__name__]

    def ask(self: EnginePool, /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = self._ask_one(call, call.bind(args, kwargs))
        return answer

    return ask


def _all(method: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[EnginePool, P], None]:
    """The method of the pool that makes a change in all engines that it concerns. Raises as `make` of Broadcast and of
    ModelAssignment does.
    """
    call = CALLS[method.__name__]

    def change(self: EnginePool, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self._make(Change(call, call.bind(args, kwargs)))

    return change


class EnginePool:
    """The engines that listen at `paths`. Any thread may call any method; a call blocks only its own thread or
    greenlet.

    Requests go to the engines that have their model ready; the loss of one concerns nobody but those whose requests it
    has. Changes are made by all engines, or, `by_model`, those of a model by the one engine that has it. `folder` is
    what the processes of the server share for that.
    """

    def __init__(
        self,
        paths: Sequence[str],
        make_link: MakeLink,
        memory_bytes: int,
        folder: Path,
        *,
        keeps_answers: bool,
        by_model: bool = False,
    ) -> None:
        """`keeps_answers`: each engine has a response cache of its own. `by_model`: each model lives on one engine."""
        self._links = [make_link() for _ in paths]
        self._engines = [
            RemoteEngine(path, link, memory_bytes, self._changed) for path, link in zip(paths, self._links, strict=True)
        ]
        self._keeps_answers = keeps_answers
        self._broadcast = Broadcast(self._engines, folder, self._wait)
        self._assignment = ModelAssignment(self._engines, folder, self._wait) if by_model else None
        # What tells least of a model: that an engine which may not be meant is gone; or, where only one has the model,
        # that another one does not know it.
        self._dull = (ModelNotFound, InvalidRequest) if by_model else EngineGone
        self._models: dict[tuple[str, int], PooledModel] = {}
        self._is_exiting = False
        self._was_complete = False
        self._started = time.monotonic()
        self.trace_gate = TraceGate()

    def _wait(self, seconds: float) -> None:
        self._links[0].waiter().wait(seconds)

    def start(self) -> None:
        """Begin to connect to all engines, and then to finish what a front end had begun when it died."""
        self._started = time.monotonic()
        for engine in self._engines:
            engine.start()
        if self._broadcast.has_unfinished:
            threading.Thread(target=self._finish, name="trident-unfinished", daemon=True).start()

    def _finish(self) -> None:
        """On a thread of its own."""
        while self._awaited() and not self._is_exiting:
            time.sleep(_LOOK_SECONDS)
        self._broadcast.finish_unfinished()

    def begin_exit(self) -> None:
        """Become neither live nor ready; requests are still served."""
        self._is_exiting = True
        for engine in self._engines:
            engine.begin_exit()

    def close(self) -> None:
        """End all connections; every request and call that still waits gets EngineGone."""
        self._is_exiting = True
        for engine in self._engines:
            engine.close()

    def allocate(self, size: int) -> Array | None:
        """Memory for a body of `size` bytes that is shared with the least busy engine, which then gets the request."""
        for engine in sorted(self._engines, key=_busyness):
            memory = engine.allocate(size)
            if memory is not None:
                return memory
        return None

    def process_ids(self) -> list[int]:
        """The processes of the engines that are there."""
        return [number for engine in self._engines for number in engine.process_ids()]

    def release_memory(self) -> None:
        """Return to the system the shared memory that no request uses."""
        for engine in self._engines:
            engine.release_memory()

    def _changed(self) -> None:
        """Forget what was known of the models, after the state of an engine has changed. A link's thread."""
        self._models = {}
        gates = [engine.trace_gate for engine in self._engines]
        self.trace_gate.is_open = any(gate.is_open for gate in gates)
        self.trace_gate.reads_context = any(gate.reads_context for gate in gates)
        if all(engine.is_ready() for engine in self._engines):
            self._was_complete = True

    # --- models and requests

    def model(self, name: str, version: int = -1) -> PooledModel | RemoteModel:
        found = self._models.get((name, version))
        if found is not None:
            return found
        if version <= _FIRST_HOLD:
            return self._holder_of(version).model(name, version)
        models = self._models
        found = models[name, version] = self._find(name, version)
        return found

    def _find(self, name: str, version: int) -> PooledModel:
        candidates = []
        errors: list[ServerError] = []
        for number, engine in enumerate(self._engines):
            try:
                candidates.append(Candidate(number, engine, engine.model(name, version)))
            except ServerError as error:
                errors.append(error)
        if not candidates:
            raise self._most_telling(errors)
        spec = candidates[0].model.spec
        is_pinned = spec.preserves_ordering or (self._keeps_answers and spec.response_cache)
        return PooledModel(candidates, is_pinned=is_pinned)

    def model_nowait(self, name: str, version: int = -1) -> PooledModel | None:
        return self._models.get((name, version))

    def hold_version(self, name: str, version: int = -1) -> int:
        errors: list[ServerError] = []
        for engine in sorted(self._engines, key=_busyness):
            try:
                return engine.hold_version(name, version)
            except ServerError as error:
                errors.append(error)
        raise self._most_telling(errors)

    def release_version(self, name: str, number: int) -> None:
        self._holder_of(number).release_version(name, number)

    def _holder_of(self, number: int) -> RemoteEngine:
        return self._engines[(_FIRST_HOLD - number) % len(self._engines)]

    def trace_answered(self, number: int, ahead: Sequence[TraceEvent], behind: Sequence[TraceEvent]) -> None:
        engine = self._engines[(number - _FIRST_TRACE) % len(self._engines)]
        engine.trace_answered(number, ahead, behind)

    # --- what one engine knows as well as all

    model_spec = _any(Engine.model_spec)
    server_metadata = _any(Engine.server_metadata)
    model_metadata = _any(Engine.model_metadata)
    model_config = _any(Engine.model_config)
    trace_settings = _any(Engine.trace_settings)
    system_regions = _any(Engine.system_regions)
    cuda_regions = _any(Engine.cuda_regions)

    def _ask_one(self, call: Call, arguments: Sequence[object]) -> Any:
        errors: list[ServerError] = []
        for engine in self._engines:
            try:
                return engine.begin(call, arguments).result()
            except ServerError as error:
                errors.append(error)
        raise self._most_telling(errors)

    # --- what all engines have together

    def model_statistics(self, name: str = "", version: int = -1) -> list[VersionStatistics]:
        return merged_version_statistics(self._ask_all(CALLS["model_statistics"], [name, version]))

    def slowest_requests(self, name: str, version: int = -1) -> list[VersionRequests]:
        answers = self._ask_all(CALLS["slowest_requests"], [name, version])
        return merged_requests(requests for answer in answers for requests in answer)

    def repository_index(self, ready_only: bool) -> list[IndexEntry]:
        answers = self._ask_all(CALLS["repository_index"], [ready_only], but_recovering=True)
        index = merged_index(answers)
        if not ready_only or self._assignment is not None:
            return index
        times = Counter((entry.name, entry.version) for entries in answers for entry in entries)
        return [entry for entry in index if times[entry.name, entry.version] == len(answers)]

    def metrics(self) -> MetricsSnapshot:
        return merged_metrics(self._ask_all(CALLS["metrics"], []))

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        answers, errors = self._answers(CALLS["is_model_ready"], [name, version], but_recovering=True)
        if not answers:
            raise self._most_telling(errors)
        return all(answers) and not [error for error in errors if not isinstance(error, (EngineGone, self._dull))]

    def _ask_all(self, call: Call, arguments: Sequence[object], *, but_recovering: bool = False) -> list[Any]:
        """The results of the engines that have one. Raises the most telling error if none has."""
        answers, errors = self._answers(call, arguments, but_recovering=but_recovering)
        if not answers:
            raise self._most_telling(errors)
        return answers

    def _answers(
        self, call: Call, arguments: Sequence[object], *, but_recovering: bool = False
    ) -> tuple[list[Any], list[ServerError]]:
        """Ask all engines at once; with `but_recovering` none that loads its models again while others have them."""
        asked, answers, errors = [], [], list[ServerError]()
        leaves_out = but_recovering and self._assignment is None
        there = [engine for engine in self._engines if not (leaves_out and engine.is_recovering)]
        for engine in there or self._engines:
            try:
                asked.append(engine.begin(call, arguments))
            except ServerError as error:
                errors.append(error)
        for each in asked:
            try:
                answers.append(each.result())
            except ServerError as error:
                errors.append(error)
        return answers, errors

    def _most_telling(self, errors: Sequence[ServerError]) -> ServerError:
        return next((error for error in errors if not isinstance(error, self._dull)), errors[0])

    # --- what all engines change

    def _make(self, change: Change) -> None:
        if self._assignment is not None and change.is_of_model:
            self._assignment.make(change)
        else:
            self._broadcast.make(change)

    load_model = _all(Engine.load_model)
    load_directory = _all(Engine.load_directory)
    unload_model = _all(Engine.unload_model)
    change_log = _all(Engine.change_log)
    change_trace = _all(Engine.change_trace)
    register_system_region = _all(Engine.register_system_region)
    register_cuda_region = _all(Engine.register_cuda_region)
    unregister_regions = _all(Engine.unregister_regions)

    # --- the state

    def is_live(self) -> bool:
        return not self._is_exiting and any(engine.is_live() for engine in self._engines)

    def is_ready(self) -> bool:
        """At the start whether all engines are; later one is enough, as it gets the requests of those that are gone."""
        if self._is_exiting or not any(engine.is_ready() for engine in self._engines):
            return False
        return not self._awaited()

    def phase(self) -> ServingPhase:
        """That of the slowest engine at the start, later that of the one that has come furthest."""
        if self._is_exiting:
            return ServingPhase(name=Phase.EXITING)
        engines = self._awaited()
        if engines:
            return min((engine.phase() for engine in engines), key=_progress)
        return max((engine.phase() for engine in self._engines), key=_progress)

    def _awaited(self) -> list[RemoteEngine]:
        """The engines without which the server is not ready: those that this front end has not seen ready once."""
        if self._was_complete:
            return []
        is_early = time.monotonic() - self._started < _MISSING_SECONDS
        return [
            engine
            for engine in self._engines
            if not engine.is_ready() and (is_early or engine.phase().name in _STILL_LOADING)
        ]


def _busyness(engine: RemoteEngine) -> int:
    return engine.in_flight


def _progress(phase: ServingPhase) -> tuple[int, int]:
    return _PHASES.index(phase.name), phase.done
