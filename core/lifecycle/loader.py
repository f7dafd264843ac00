"""Loads the versions of a model from its directory.

It runs on loader threads. A failure becomes the version's reason in the repository index and one log line.
Source: docs/spec/repository.md sections 1.6 and 1.9, docs/spec/model-config.md sections 2.4, 2.5 and 2.8.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from core.backends.base import BackendInstance, BackendModel, LoadContext
from core.backends.devices.cpu_budget import available_cores, plan_threads
from core.backends.model_door import ModelDoor
from core.backends.registry import BackendRegistry
from core.config.autocomplete import is_complete
from core.config.bucket_samples import bucket_samples
from core.config.ensemble.graph import EnsembleStep, ensemble_steps
from core.config.golden.reader import golden_requests
from core.config.instance_groups import instance_group_problems
from core.config.model_spec import ModelSpec
from core.config.normalize import normalize
from core.config.parse import parse_config_override
from core.config.placement import DeviceKind, Placement, placement_changes, placements
from core.config.platforms import is_ensemble
from core.config.problem import InvalidModelConfig
from core.config.resolve import resolve_model_spec, with_graph_labels
from core.config.schema import ModelConfig, copy_of
from core.config.sequence.initial_states import initial_states
from core.config.sequence.resolve import backend_spec
from core.config.warmup import WarmupSample, warmup_samples
from core.errors import BackendFailed, ConfigInvalid, OutOfMemory, RepositoryUnavailable, ServerError
from core.lifecycle.answer_identity import answer_identity
from core.lifecycle.ensemble_probe import EnsembleProbe
from core.lifecycle.golden_check import check_golden
from core.lifecycle.load_slots import LoadSlots
from core.lifecycle.options import EngineOptions
from core.lifecycle.steps import FindSteps
from core.lifecycle.version import ModelVersion
from core.observability.metrics.custom_metrics import CustomMetrics
from core.observability.tracing.tracer import Tracer
from core.repository.checksums import check_checksums
from core.repository.config_completion import check_config, load_config
from core.repository.config_file import read_config
from core.repository.content_digest import ContentDigest
from core.repository.labels import read_labels
from core.repository.layout import ModelDirectory
from core.repository.layout_mistakes import layout_hint
from core.repository.repositories import Located
from core.repository.sources.single_model import SingleModelSource
from core.repository.sources.source import Fetched
from core.repository.versions import available_versions, version_path
from core.response_cache.response_cache import ResponseCache
from core.scheduling.caching_scheduler import CachingScheduler
from core.scheduling.execution import run_once
from core.scheduling.factory import make_scheduler
from core.scheduling.protocol import Scheduler
from core.scheduling.rate_limiter.instance_claims import InstanceClaims
from core.scheduling.rate_limiter.rate_limiter import RateLimiter
from core.shared_memory.regions import Regions

if TYPE_CHECKING:
    from core.scheduling.sequence.states import InitialStates

_log = logging.getLogger("trident.lifecycle")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model before its load: its configuration as it is written, and the existing versions, ascending.

    `layout_hint` says what its folder lacks if it has no version.
    """

    located: Located
    config: ModelConfig
    available: tuple[int, ...]
    layout_hint: str = ""


class ModelLoader:
    """Loads versions of models; any number of loader threads at once.

    `gpu_uuids` are indexed by GPU number. `on_poisoned` is called with an instance that cannot run any more. `models`
    is what the loaded models ask other models through; it is set before the first load. `metrics` are those that they
    make. `response_cache`, `rate_limiter` and `tracer` are None if the server has none. `regions` are those of the
    clients' shared memory.
    """

    def __init__(
        self,
        options: EngineOptions,
        backends: BackendRegistry,
        *,
        gpu_uuids: Sequence[str] = (),
        on_poisoned: Callable[[BackendInstance], None] | None = None,
        metrics: CustomMetrics | None = None,
        response_cache: ResponseCache | None = None,
        rate_limiter: RateLimiter | None = None,
        regions: Regions | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._options = options
        self._tracer = tracer
        self._backends = backends
        self._gpu_uuids = tuple(gpu_uuids)
        self._threads = 0
        self.slots = LoadSlots(options.load_threads)
        self._on_poisoned = on_poisoned
        self.models: ModelDoor | None = None
        self._metrics = metrics or CustomMetrics()
        self._response_cache = response_cache
        self._rate_limiter = rate_limiter
        self.regions = regions

    def plan_threads(self, models: int) -> None:
        """Divide the container's cores among `models` sessions. Called before the first load."""
        plan = plan_threads(available_cores(), models)
        self._threads = plan.intra_op_threads
        _log.info("thread plan: %s", plan)

    def prepare(self, located: Located, override: str | None = None) -> Prepared:
        """Read the model without its graphs. `override`, JSON, replaces its configuration file.

        Raises a ServerError if the model cannot be read, or if its configuration is wrong for any graph.
        """
        name = located.key.name
        fetched = located.source.fetch(name, located.files, None)
        try:
            directory = fetched.directory
            auto_complete = self._options.auto_complete
            if override is not None:
                config = parse_config_override(override)
            else:
                config = read_config(directory, config_name=self._options.config_name, required=not auto_complete)
            if isinstance(located.source, SingleModelSource):  # it is served under the name that it was given
                config.name = name
            check_config(directory, config, self._backends, auto_complete=auto_complete)
            available = tuple(available_versions(config, directory))
            return Prepared(located, config, available, "" if available else layout_hint(directory, config))
        except OSError as error:
            raise RepositoryUnavailable(f"failed to read model '{name}': {error}", model=name) from error
        finally:
            fetched.release()

    def steps(self, located: Located, override: str | None) -> tuple[EnsembleStep, ...]:
        """The steps of an ensemble; empty for any other model, and for one that cannot be read: `prepare` says why."""
        try:
            config = self._written(located, override)
        except ServerError:
            return ()
        return ensemble_steps(config) if is_ensemble(config) else ()

    def _written(self, located: Located, override: str | None) -> ModelConfig:
        if override is not None:
            return parse_config_override(override)
        fetched = located.source.fetch(located.key.name, located.files, None)
        try:
            return read_config(fetched.directory, config_name=self._options.config_name)
        finally:
            fetched.release()

    def load(self, prepared: Prepared, version: ModelVersion, find_steps: FindSteps) -> None:
        """LOADING -> READY, or UNAVAILABLE with the reason after as many retries as the options allow.

        `find_steps` finds the versions that the steps of an ensemble run on. Waits for its turn: the options limit how
        many versions load at the same time.
        """
        with self.slots.taken(version.name):
            for attempt in range(self._options.load_retries + 1):
                _log.info("loading: %s:%d%s", version.name, version.version, version.origin)
                # No variable keeps the error: with its traceback it would be a cycle around the session, which would
                # hold weights and threads until the garbage collector runs.
                try:
                    self._load_once(prepared, version, find_steps)
                except ServerError as error:
                    self._note_failure(version, attempt, error)
                except Exception as exc:  # a bug of a backend is a failure of this version and must not end the server
                    _log.exception("loading '%s'%s failed", version.name, version.origin)
                    self._note_failure(version, attempt, BackendFailed(str(exc) or type(exc).__name__))
                else:
                    return

    def _note_failure(self, version: ModelVersion, attempt: int, failure: ServerError) -> None:
        """LOADING -> UNAVAILABLE after the last attempt. `attempt` counts from 0."""
        _log.error(
            "failed to load '%s' version %d%s: %s%s",
            version.name,
            version.version,
            version.origin,
            failure.reason,
            f" ({failure.hint})" if failure.hint else "",
            extra={"model": version.name, "attempt": attempt + 1},
        )
        if attempt == self._options.load_retries:
            version.fail(failure)

    def change_instances(self, prepared: Prepared, version: ModelVersion) -> None:
        """Give a serving version the instances that the configuration asks for now; its weights stay.

        Raises InvalidModelConfig, or the error of a new instance; then the version continues unchanged.
        """
        config = copy_of(version.config)
        config.ClearField("instance_group")
        config.instance_group.extend(prepared.config.instance_group)
        config.version_policy.CopyFrom(prepared.config.version_policy)
        gpu_ids = self._backends.gpu_ids(config)
        normalize(config, gpu_ids)
        problems = instance_group_problems(config, version.name, gpu_ids)
        if problems:
            raise InvalidModelConfig(problems, model=version.name)
        removed, wanted = placement_changes(version.placements, placements(config))
        added: list[BackendInstance] = []
        samples = _samples(config, version.spec, version.directory)
        states = _initial_states(version, version.directory)
        try:
            for placement in wanted:
                added.append(version.make_instance(placement))
                version.claims.enter(added[-1], version.name)
                self._warm_up(version, added[-1], samples, states)
        except BaseException:
            version.discard(added)
            raise
        version.change_instances(added, removed, config)

    def _load_once(self, prepared: Prepared, version: ModelVersion, find_steps: FindSteps) -> None:
        located = prepared.located
        while True:
            fetched = located.source.fetch(version.name, located.files, version.version)
            try:
                self._load_from(fetched, prepared, version, find_steps)
            except _Replaced:
                fetched.release()
            except BaseException:
                fetched.release()
                raise
            else:
                return

    def _load_from(self, fetched: Fetched, prepared: Prepared, version: ModelVersion, find_steps: FindSteps) -> None:
        """Raises _Replaced, or the failure; then the caller releases `fetched`."""
        try:
            others = set(prepared.available) - {version.version}
            check_checksums(fetched.directory, prepared.config, without=others)
            if self._response_cache is not None and self._response_cache.answers_later:
                version.content = ContentDigest(fetched.directory, version.version)
            self._configure(fetched.directory, prepared.config, version)
            if is_ensemble(version.config):
                self._serve_ensemble(fetched, version, find_steps)
            else:
                self._serve(fetched, version, was_inspected=not is_complete(prepared.config))
        except _Replaced:
            raise
        except Exception:
            # The reason may be a file that is not verified yet.
            _check_verified(fetched)
            raise

    def _serve_ensemble(self, fetched: Fetched, version: ModelVersion, find_steps: FindSteps) -> None:
        from core.lifecycle.composed_model import compose_model, compose_scheduler  # for servers with ensembles only

        model = compose_model(version, find_steps)
        scheduler = compose_scheduler(version, model)
        try:
            golden = golden_requests(fetched.directory.path, version.spec, version.version)
            if golden:
                check_golden(EnsembleProbe(version.name, scheduler), version.spec, version.check, golden)
            _check_verified(fetched)
        except BaseException:
            model.close()
            raise
        version.serve(model, [], self._with_cache(scheduler, version), fetched)

    def _serve(self, fetched: Fetched, version: ModelVersion, *, was_inspected: bool) -> None:
        directory = fetched.directory
        backend = self._backends.find(version.config)
        placed = placements(version.config)
        context = LoadContext(
            path=version_path(directory, version.version),
            config=version.config,
            spec=backend_spec(version.spec),
            placements=placed,
            threads=self._threads,
            models=self.models,
            metrics=self._metrics,
            was_inspected=was_inspected,
        )
        samples = _samples(version.config, version.spec, directory)
        golden = golden_requests(directory.path, version.spec, version.version)
        states = _initial_states(version, directory)
        model = backend.load(context)
        version.claims = self._claims(version, placed)
        version.configure(version.config, with_graph_labels(version.spec, version.config, model.labels))
        instances: list[BackendInstance] = []
        try:
            for placement in placed:
                instances.append(model.instance(placement))
                version.claims.enter(instances[-1], version.name)
                self._warm_up(version, instances[-1], samples, states)
            for instance in _one_per_device(instances):
                with version.claims.turn(instance):
                    check_golden(_probe(version, instance, states), version.spec, version.check, golden)
            _check_verified(fetched)
        except BaseException:
            for instance in instances:
                version.claims.leave(instance)
            _close(model, instances)
            raise
        scheduler = make_scheduler(
            version.spec,
            instances,
            version.statistics,
            delay_until=self._options.delay_scheduler,
            backlog_delay_until=self._options.backlog_delay_scheduler,
            initial_states=states,
            on_poisoned=self._on_poisoned,
            window=self._options.response_window,
            claims=version.claims,
        )
        version.gpu_uuid = self._gpu_uuid(placed)
        version.serve(model, instances, self._with_cache(scheduler, version), fetched)

    def _claims(self, version: ModelVersion, placed: Sequence[Placement]) -> InstanceClaims:
        """Those of the instances on the resources that their executions hold, if the server has a rate limiter."""
        if self._rate_limiter is None and any(placement.limit.needs for placement in placed):
            _log.warning(
                "model '%s' has a rate_limiter, but the server has none: start it with --rate-limit=execution_count",
                version.name,
            )
        return InstanceClaims(self._rate_limiter)

    def _with_cache(self, scheduler: Scheduler, version: ModelVersion) -> Scheduler:
        """`scheduler`, behind the response cache if the model wants it."""
        # An ensemble is decoupled if one of its steps is, whatever its configuration says.
        if not version.config.response_cache.enable or version.spec.decoupled:
            return scheduler
        if self._response_cache is None:
            _log.warning(
                "model '%s' enables the response cache, but the server has none: start it with "
                "--cache-config=local,size=<bytes> or redis,host=<host>,port=<port>",
                version.name,
            )
            return scheduler
        cache = self._response_cache
        scope = cache.open_scope(version.name, version.version, partial(answer_identity, version))
        return CachingScheduler(scheduler, cache, scope, version.spec, version.statistics, version.submit)

    def _gpu_uuid(self, placed: Sequence[Placement]) -> str | None:
        """The GPU of a version that runs on exactly one device, for the label of its metrics."""
        devices = {(placement.kind, placement.device_id) for placement in placed}
        if len(devices) != 1:
            return None
        kind, device_id = devices.pop()
        return self._gpu_uuids[device_id] if kind is DeviceKind.GPU and device_id < len(self._gpu_uuids) else None

    def _configure(self, directory: ModelDirectory, written: ModelConfig, version: ModelVersion) -> None:
        config = load_config(
            directory,
            written,
            self._backends,
            auto_complete=self._options.auto_complete,
            version=version.version,
        )
        version.configure(config, resolve_model_spec(config, version.version, read_labels(directory, config)))
        if self._tracer is not None:
            version.trace_with(self._tracer)
        version.measure(self._options.latencies)

    def _warm_up(
        self, version: ModelVersion, instance: BackendInstance, samples: Sequence[WarmupSample], states: InitialStates
    ) -> None:
        probe = _probe(version, instance, states)
        for sample in samples:
            for iteration in range(sample.count):
                _log.debug(
                    "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                    version.name,
                    instance.placement.name,
                    sample.name,
                    iteration + 1,
                )
                try:
                    requests = [sample.request(version.spec) for _ in range(sample.batch_size)]
                    with version.claims.turn(instance):
                        run_once(probe, requests, version.check)
                except ServerError as error:
                    kind = OutOfMemory if isinstance(error, OutOfMemory) else ConfigInvalid
                    raise kind(sample.failure(error.message), hint=error.hint) from error


class _Replaced(Exception):
    """A file from which a version was made had arrived damaged, and was replaced."""


def _check_verified(fetched: Fetched) -> None:
    """Raise _Replaced, or what `Fetched.verify` raises."""
    if not fetched.verify():
        raise _Replaced


def _samples(config: ModelConfig, spec: ModelSpec, directory: ModelDirectory) -> list[WarmupSample]:
    samples = warmup_samples(config, directory.path)
    buckets = bucket_samples(spec, samples)
    if buckets:  # the reason why the load takes longer, perhaps much longer
        _log.info(
            "model '%s': each instance runs its %d batch buckets once before it is ready", spec.name, len(buckets)
        )
    return [*samples, *buckets]


def _initial_states(version: ModelVersion, directory: ModelDirectory) -> InitialStates:
    """Those of its sequences. Raises ConfigInvalid."""
    sequence = version.spec.sequence
    return {} if sequence is None else initial_states(version.config, sequence.states, directory.path)


def _probe(version: ModelVersion, instance: BackendInstance, states: InitialStates) -> BackendInstance:
    """`instance`, for requests that no client sent."""
    if version.spec.sequence is None:
        return instance
    from core.scheduling.sequence.probe import SequenceProbe  # for servers with such models only

    return SequenceProbe(instance, version.spec, states)


def _one_per_device(instances: Sequence[BackendInstance]) -> list[BackendInstance]:
    """One instance per device: those on one device share a session and so give the same answers."""
    return list({instance.placement.device: instance for instance in instances}.values())


def _close(model: BackendModel, instances: Sequence[BackendInstance]) -> None:
    for instance in instances:
        instance.close()
    model.close()
