"""One model: its versions, and its loads and unloads, one at a time.

A load builds new versions beside those that serve, swaps them in at once, and unloads the old ones after they have
answered their requests. Nothing here waits for a request, and no request waits for anything here.
Source: docs/spec/repository.md sections 1.6 and 1.7.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from trident.core.config.platforms import is_ensemble
from trident.core.config.schema import ModelConfig, core_config
from trident.core.errors import ConfigInvalid, InvalidRequest, ModelLoadFailed, OutOfMemory, ServerError
from trident.core.lifecycle.loader import ModelLoader
from trident.core.lifecycle.reader import Prepared
from trident.core.lifecycle.state import UNLOADED, ModelState
from trident.core.lifecycle.version import Find, FindSteps, ModelVersion
from trident.core.repository.repository import CONFIG_FILE, NAMED_CONFIGS, select_versions, version_of
from trident.core.repository.sources import NOT_UNIQUE, Located, ModelKey, SourceFile


@dataclass(frozen=True, slots=True)
class Content:
    """The source of a load: the model's files, and its configuration as the file or the load request has it."""

    files: tuple[SourceFile, ...]
    config: ModelConfig


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """`load` are built beside the old versions and swapped in, then `drop` are unloaded; `keep` continue to serve.

    `reconfigure`: instance groups or version policy of those to keep have changed.
    """

    load: tuple[int, ...]
    keep: tuple[int, ...]
    drop: tuple[int, ...]
    reconfigure: bool


def plan_reload(
    old: Content | None,
    new: Content,
    wanted: Sequence[int],
    serving: Collection[int],
    *,
    completed: Collection[ModelConfig] = (),
    force: bool = False,
) -> ReloadPlan:
    """`wanted` are the versions that the policy selects of `new`; `serving` those that are ready, of `old`.

    `completed` are the configurations of `old` as the server completed them: clients load what they were shown.
    `force` reloads although nothing of the model changed.
    """
    reload_all = (
        force
        or old is None
        or _shared_files(old) != _shared_files(new)
        or not (_are_equivalent([old.config], new.config) or _are_equivalent(completed, new.config))
    )
    load = tuple(
        version
        for version in wanted
        if reload_all
        or old is None
        or version not in serving
        or _version_files(old, version) != _version_files(new, version)
    )
    keep = tuple(version for version in wanted if version not in load)
    drop = tuple(sorted(version for version in serving if version not in wanted))
    reconfigure = bool(keep) and old is not None and old.config != new.config
    return ReloadPlan(load, keep, drop, reconfigure)


def _are_equivalent(old: Collection[ModelConfig], new: ModelConfig) -> bool:
    """True if there are `old` ones and `new` differs from them in what can be changed in place only."""
    core = core_config(new)
    return bool(old) and all(core_config(config) == core for config in old)


def _shared_files(content: Content) -> list[SourceFile]:
    return [
        file
        for file in content.files
        if file.path != CONFIG_FILE and not file.path.startswith(f"{NAMED_CONFIGS}/") and version_of(file.path) is None
    ]


def _version_files(content: Content, version: int) -> list[SourceFile]:
    return [file for file in content.files if version_of(file.path) == version]


# Source: docs/spec/repository.md section 1.6, "In-flight requests"; section 1.7; docs/spec/server-options.md section 5
# (log lines).


_log = logging.getLogger("trident.lifecycle")

_REPORT_S = 1.0


class Unloads:
    """Called on loader threads. `drain` and `wait` log every second what they wait for.

    After `limit_s` seconds a version that is being unloaded ends the processes of its model that still have requests;
    None waits for them without a limit.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._leaving: dict[threading.Thread, ModelVersion] = {}

    def begin(self, version: ModelVersion, cause: str) -> None:
        """READY -> UNLOADING now; -> UNAVAILABLE when the requests in flight are answered and the memory is free."""
        version.begin_unload(cause)
        thread = threading.Thread(
            target=self._finish, args=(version,), name=f"trident-unload-{version.name}", daemon=True
        )
        with self._lock:
            self._leaving[thread] = version
        thread.start()

    @property
    def leaving(self) -> list[ModelVersion]:
        with self._lock:
            return list(self._leaving.values())

    def drain(self, serving: Iterable[ModelVersion], timeout_s: float) -> None:
        """Block until no version, serving or being unloaded, has requests in flight, at most `timeout_s` seconds.

        A request may ask other models while it is executed, so none of them can be unloaded before all are answered.
        """
        deadline = time.monotonic() + timeout_s
        versions = [*serving, *self.leaving]
        while any(version.in_flight for version in versions) and (left := deadline - time.monotonic()) > 0:
            for version in versions:
                version.end_given_up("the server is stopping", for_good=True)
            log_in_flight(versions, left)
            until = time.monotonic() + min(left, _REPORT_S)
            for version in versions:
                version.drain(max(0.0, until - time.monotonic()))

    def wait(self, timeout_s: float) -> bool:
        """Return True if all versions that are being unloaded are gone within `timeout_s` seconds. After that the
        others abandon their requests."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            leaving = dict(self._leaving)
        left = timeout_s
        log_in_flight(leaving.values(), left)
        while leaving and left > 0:
            until = time.monotonic() + min(left, _REPORT_S)
            for thread in leaving:
                thread.join(max(0.0, until - time.monotonic()))
            leaving = {thread: version for thread, version in leaving.items() if thread.is_alive()}
            left = deadline - time.monotonic()
            if any(version.in_flight for version in leaving.values()):
                log_in_flight(leaving.values(), max(0.0, left))
        # Before they abandon their requests, and soon are gone as well.
        late = [version for thread, version in leaving.items() if thread.is_alive()]
        for version in late:
            version.abandon()
        return not late

    def _finish(self, version: ModelVersion) -> None:
        try:
            version.finish_unload(self._limit_s)
            _log.info("successfully unloaded '%s' version %d%s", version.name, version.version, version.origin)
        finally:
            with self._lock:
                self._leaving.pop(threading.current_thread(), None)


def log_in_flight(versions: Iterable[ModelVersion], seconds_left: float) -> None:
    in_flight = [(version, count) for version in versions if (count := version.in_flight)]
    _log.info("Timeout %d: Found %d model versions that have in-flight inferences", round(seconds_left), len(in_flight))
    for version, count in in_flight:
        _log.info("Model '%s' (version %d) has %d in-flight inferences", version.name, version.version, count)


_LOOK_EVERY_S = 0.1


class LoadReplaced(Exception):
    """A load failed, and newer files of the model, `located`, arrived meanwhile."""

    def __init__(self, located: Located) -> None:
        super().__init__(located.key.name)
        self.located = located


# An exponent of two: at least every 64th poll, a quarter of an hour at the default 15 seconds.
_SELDOM = 6


class Model:
    """A model that the server was ever told to load. `load` and `unload` block: loader threads only.

    `versions` are those in the index, `serving` those that requests find; both are replaced, never changed. `problem`
    is why the last load ended before any version was built. `required`: the start has to load it. `is_awaited`: a load
    of it runs or is queued. `is_requested`: it was loaded for itself, not only as a step of an ensemble. `location` is
    the repository that it was last loaded from, `origin` as in `ModelVersion`.
    """

    def __init__(
        self,
        key: ModelKey,
        loader: ModelLoader,
        unloads: Unloads,
        publish: Callable[[], None],
        find: Find,
        find_steps: FindSteps,
    ) -> None:
        self.key = key
        self.problem = ""
        self._problem_hint = ""
        self.required = False
        self.is_awaited = False
        self.is_requested = False
        self.location = ""
        self.origin = ""
        self.versions: Mapping[int, ModelVersion] = {}
        self.serving: Mapping[int, ModelVersion] = {}
        self._content: Content | None = None
        self._failed_files: Sequence[SourceFile] | None = None
        self._failures = 0
        self._loader = loader
        self._unloads = unloads
        self._publish = publish
        self._find = find
        self._find_steps = find_steps
        # The arguments of the last load, for `reload`.
        self._loaded: tuple[Located, str | None] | None = None
        self._operation = threading.Lock()
        # Held only while `serving` changes: the exit of the server must not wait for a load.
        self._changing = threading.Lock()
        self._has_left = False
        # The versions that a load in progress changes, and the files for which it was ended.
        self.attempted: Sequence[ModelVersion] = ()
        self._newer: Located | None = None
        # Why every load fails from now on; "" if loads may succeed.
        self._stopped_because = ""

    @property
    def is_busy(self) -> bool:
        return self._operation.locked()

    def end_load(self, because: str) -> bool:
        """Make a load in progress fail now. Returns True if there was one. Any thread."""
        ended = [version.attempt.end(because) for version in self.attempted]
        return any(ended)

    def stop_loading(self, because: str) -> None:
        """Let the load in progress and all later ones fail. Any thread."""
        self._stopped_because = because
        self.end_load(because)

    def load_newer(self, located: Located) -> None:
        """Restart a load in progress with newer files, unless it is still fetching its own. Any thread."""
        if self._failed_files != located.files and any(version.attempt.step for version in self.attempted):
            self._begin_anew(located, "its files have changed")

    def load_anew(self, because: str) -> None:
        if self.attempted and self._loaded is not None:
            self._begin_anew(self._loaded[0], because)

    def _begin_anew(self, located: Located, because: str) -> None:
        self._newer = located
        if self.end_load(f"{because} while it was being loaded"):
            _log.warning("restarting the load of '%s': %s", self.key.name, because)

    @property
    def is_ready(self) -> bool:
        """True if it has a version, and each is ready or was unloaded on request (docs/spec/repository.md section 1.5).

        A model without versions counts as ready unless the start had to load it.
        """
        if not self.versions:
            return not self.required
        return all(v.is_ready or _was_told_to_leave(v) for v in self.versions.values())

    @property
    def trouble(self) -> str:
        """Why a version that serves cannot at the moment; "" if all can."""
        return next((version.trouble for version in self.serving.values() if version.trouble), "")

    @property
    def loading(self) -> list[int]:
        """The versions that are being loaded and have no version before them that serves."""
        return [number for number, version in self.versions.items() if version.state.current is ModelState.LOADING]

    @property
    def has_failed(self) -> bool:
        """True if the last load failed, so that the serving versions, if any, are not the requested ones."""
        return bool(self.problem) or any(v.reload_failure or _has_failed(v) for v in self.versions.values())

    @property
    def hint(self) -> str:
        return self._problem_hint if self.problem else _hints(v for v in self.versions.values() if _has_failed(v)) or ""

    @property
    def is_known(self) -> bool:
        """True if its name means this model: it serves, is being loaded, or failed to load."""
        return bool(self.serving) or self.has_failed or self.is_awaited

    @property
    def written_config(self) -> ModelConfig | None:
        return self._content.config if self._content is not None else None

    def is_made_of(self, files: Sequence[SourceFile]) -> bool:
        return self._content is not None and self._content.files == files

    def is_worth_a_try(self, files: Sequence[SourceFile], poll: int) -> bool:
        """Return True if poll number `poll` should load `files`: always if they have not failed, else less and less
        often.

        The cause of a failure may pass (memory, a storage), but retries must not fill the log.
        """
        if self._failed_files != files:
            return True
        return poll % (1 << min(self._failures, _SELDOM)) == 0

    def load(self, located: Located, cause: str, override: str | None = None, *, again: bool = True) -> None:
        """Load the repository's current versions; do nothing if they are unchanged.

        `override`, JSON, replaces the configuration file until the files change. Without `again` files that have failed
        fail with the same reason. A load of other files, or with another override, is ended if it takes long.

        Raises ModelLoadFailed, InvalidRequest or OutOfMemory with Triton's text; then the versions that served continue
        to serve. Raises LoadReplaced if newer files came while it failed.
        """

        def end_other() -> None:
            if self._loaded != (located, override) and any(version.attempt.is_long for version in self.attempted):
                self.end_load("another load of it was requested")

        with self._operating(end_other):
            self.is_awaited = True
            self._newer = None
            try:
                if override is None and self.is_made_of(located.files):
                    self._forget_failure()
                    return
                if not again and self.has_failed and self._failed_files == located.files:
                    reason = self.problem or "; ".join(v.state.reason for v in self.versions.values() if v.has_failed)
                    raise ModelLoadFailed(reason, hint=self.hint or None, model=self.key.name)
                self.location = located.source.location
                self._failures = self._failures + 1 if self._failed_files == located.files else 1
                self._failed_files = located.files
                self._loaded = located, override
                try:
                    self._load(located, cause, override)
                except ServerError as error:
                    if self._newer is not None:
                        raise LoadReplaced(self._newer) from error
                    if self.serving:
                        versions = ", ".join(map(str, sorted(self.serving)))
                        _log.warning("version %s of '%s' that was loaded before serves on", versions, self.key.name)
                    raise
                self._failed_files = None
            finally:
                self.is_awaited = False

    @contextmanager
    def _operating(self, meanwhile: Callable[[], object]) -> Iterator[None]:
        """An operation. `meanwhile` is called every now and then until the one before it has ended."""
        while not self._operation.acquire(timeout=_LOOK_EVERY_S):
            meanwhile()
        try:
            yield
        finally:
            self._operation.release()

    def reload(self, cause: str) -> None:
        """Repeat the last load, because the models of its steps have changed. Raises as `load` does."""
        with self._operation:
            if self._loaded is not None:
                located, override = self._loaded
                self._load(located, cause, override, force=True)

    def _load(self, located: Located, cause: str, override: str | None, force: bool = False) -> None:
        try:
            prepared = self._loader.reader.prepare(located, override)
        except ServerError as error:
            raise self._failed(error, poll_failure(self.key.name)) from error
        try:
            wanted = select_versions(prepared.config, prepared.available, self.key.name, prepared.layout_hint)
        except ConfigInvalid as error:
            text = f"load failed for model '{self.key.name}': {error.message}\n"
            raise self._failed(error, text, InvalidRequest) from error
        content = Content(located.files, prepared.config)
        completed = [version.config for version in self.serving.values() if not is_ensemble(version.config)]
        plan = plan_reload(self._content, content, wanted, self.serving, completed=completed, force=force)
        self._carry_out(plan, prepared, cause)
        self._content = content
        if plan.load or plan.drop or plan.reconfigure:
            _log.info("successfully loaded '%s'%s", self.key.name, self.origin)

    def unload(self, cause: str, problem: str = "") -> None:
        """Begin to unload every version; requests in flight are still answered.

        With a `problem` the model failed: it is what the server should serve and cannot. A load in progress fails.
        """
        ended: list[bool] = []
        because = problem or "the model was unloaded while it was being loaded"
        with self._operating(lambda: ended.append(self.end_load(because))):
            if any(ended):
                self._forget_failure()
            self._content = None
            self.problem, self._problem_hint = problem, ""
            if not problem:
                self.required = self.is_requested = False
                self._loaded = None
            with self._changing:
                for version in self.serving.values():
                    version.unloaded_because = problem or UNLOADED
                    version.reload_failure = ""
                self._replace({}, dict.fromkeys(self.serving.values(), cause))

    def leave(self, cause: str) -> None:
        """Unload at the exit of the server. A load in progress is then discarded.

        Requests still find the versions, which refuse them because the server is stopping.
        """
        with self._changing:
            leaving = [] if self._has_left else list(self.serving.values())
            self._has_left = True
            for version in leaving:
                self._unloads.begin(version, cause)

    def forget(self) -> None:
        """Forget failures, because the model is no longer in its repository."""
        with self._operation:
            self.required = False
            self.is_awaited = False
            self._forget_failure()
            self._publish()

    def note_failure(self, error: ServerError) -> None:
        """Record why it cannot be loaded; no version was built."""
        self._failed(error, "")

    def drop_unloaded(self) -> None:
        """Take versions whose memory is free out of the index: the server loads them when something asks for them."""
        self.versions = {n: v for n, v in self.versions.items() if v.state.reason != UNLOADED}

    def note_duplicate(self, *, required: bool = False) -> None:
        if self.problem != NOT_UNIQUE:
            _log.error("failed to poll model '%s': not unique across all model repositories", self.key.name)
        self.problem = NOT_UNIQUE
        self.is_awaited = False
        self.required = self.required or required

    def _forget_failure(self) -> None:
        """Forget earlier failures: the serving versions are those of the repository again."""
        self.problem = ""
        for version in self.versions.values():
            version.reload_failure = ""
        self.versions = {n: v for n, v in self.versions.items() if not _has_failed(v)}

    def _failed(self, error: ServerError, message: str, kind: type[ServerError] = ModelLoadFailed) -> ServerError:
        self.problem, self._problem_hint = error.reason, error.hint or ""
        name = self.key.name
        hint = f"{error.reason} ({error.hint})" if error.hint else error.reason
        _log.error("failed to load '%s'%s: %s", name, self.origin, hint, extra={"model": name, "hint": error.hint})
        return kind(message, hint=hint, model=name)

    def _carry_out(self, plan: ReloadPlan, prepared: Prepared, cause: str) -> None:
        fresh = {
            number: ModelVersion(self.key.name, number, cause, self._find, self.origin, self._loader.parts)
            for number in plan.load
        }
        # A new version without an old one is in the index while it loads.
        self.versions = {**self.versions, **{n: v for n, v in fresh.items() if n not in self.serving}}
        self.problem = ""
        self.attempted = list(fresh.values())
        if self._stopped_because:
            self.end_load(self._stopped_because)
        try:
            self._load_versions(prepared, self.attempted)
        finally:
            self.attempted = ()
        failed = [version for version in fresh.values() if not version.is_ready]
        if failed:
            self._keep_what_serves(fresh, failed)
            kind = OutOfMemory if any(v.ran_out_of_memory for v in failed) else InvalidRequest
            reasons = [f"version {v.version} is at {v.state.current.value} state: {v.state.reason};" for v in failed]
            if is_ensemble(prepared.config):  # which Triton does not load before its steps fit
                reasons = list(dict.fromkeys(v.state.reason.partition(": ")[2] for v in failed))
            raise kind(
                f"load failed for model '{self.key.name}': " + "".join(f"{reason}\n" for reason in reasons),
                hint=_hints(failed),
                model=self.key.name,
            )
        if plan.reconfigure:
            self.attempted = [v for n, v in self.serving.items() if n in plan.keep]
            try:
                for version in self.attempted:
                    self._loader.change_instances(prepared, version)
            except ServerError as error:
                self._keep_what_serves(fresh, [])
                reasons = [
                    f"version {v.version} is at {v.state.current.value} state: {error.reason};" for v in self.attempted
                ]
                text = f"load failed for model '{self.key.name}': " + "".join(f"{reason}\n" for reason in reasons)
                raise self._failed(error, text, InvalidRequest) from error
            finally:
                self.attempted = ()
        self._swap(fresh, plan, cause)

    def _load_versions(self, prepared: Prepared, versions: Sequence[ModelVersion]) -> None:
        threads = [
            threading.Thread(
                target=self._loader.load,
                args=(prepared, version, self._find_steps),
                name=f"trident-load-{version.name}",
                daemon=True,
            )
            for version in versions[1:]
        ]
        for thread in threads:
            thread.start()
        for version in versions[:1]:
            self._loader.load(prepared, version, self._find_steps)
        for thread in threads:
            thread.join()

    def _keep_what_serves(self, fresh: Mapping[int, ModelVersion], failed: Sequence[ModelVersion]) -> None:
        """After a failure: discard the versions that were to replace others, and let entirely new ones serve."""
        with self._changing:
            beside = {n: v for n, v in fresh.items() if v.is_ready and n not in self.serving}
            discarded = [v for n, v in fresh.items() if v.is_ready and n in self.serving]
            for version in failed:
                if version.version in self.serving:
                    self.serving[version.version].reload_failure = version.state.reason
            self._replace({**self.serving, **beside}, dict.fromkeys(discarded, "another version failed to load"))

    def _swap(self, fresh: Mapping[int, ModelVersion], plan: ReloadPlan, cause: str) -> None:
        with self._changing:
            stay = {n: v for n, v in self.serving.items() if n not in plan.drop and n not in fresh}
            leaving = {
                v: f"{'replaced' if n in fresh else 'no longer selected'}, {cause}"
                for n, v in self.serving.items()
                if n not in stay
            }
            for version in stay.values():
                version.reload_failure = ""
            # A failed version that is no longer selected leaves the index.
            shown = {n: v for n, v in self.versions.items() if not _has_failed(v)}
            self.versions = {**shown, **stay, **fresh}
            self._replace({**stay, **fresh}, leaving)

    def _replace(self, serving: Mapping[int, ModelVersion], leaving: Mapping[ModelVersion, str]) -> None:
        """Let `serving` serve, then unload `leaving` for their causes. After `leave` unload new versions too."""
        if self._has_left:
            new = {v: "server exit" for v in serving.values() if v not in leaving}
            leaving = {v: cause for v, cause in {**leaving, **new}.items() if v.is_ready}
        else:
            self.serving = serving
            self._publish()
        for version, cause in leaving.items():
            self._unloads.begin(version, cause)


def poll_failure(name: str) -> str:
    return f"failed to load '{name}', failed to poll from model repository"


def _was_told_to_leave(version: ModelVersion) -> bool:
    return version.state.current is ModelState.UNLOADING or version.state.reason == UNLOADED


def _has_failed(version: ModelVersion) -> bool:
    return version.state.current is ModelState.UNAVAILABLE and not _was_told_to_leave(version)


def _hints(versions: Iterable[ModelVersion]) -> str | None:
    return "; ".join(dict.fromkeys(version.hint for version in versions if version.hint)) or None
