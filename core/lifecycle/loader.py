"""Loads the versions of a model from its directory.

It runs on loader threads. A failure becomes the version's reason in the repository index and one log line.
Source: docs/spec/repository.md sections 1.6 and 1.9, docs/spec/model-config.md sections 2.4, 2.5 and 2.8.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trident.core.backends.backend import (
    BackendInstance,
    BackendModel,
    BlsClient,
    EndableInstance,
    LoadContext,
    StartingModel,
    TriedModel,
    WeighingBackend,
)
from trident.core.backends.cpu_budget import available_cores, plan_threads
from trident.core.backends.registry import BackendRegistry
from trident.core.config.autocomplete import Preparation, fill_identity, instance_group_problems, normalize
from trident.core.config.ensemble import PRESERVE_ORDER, EnsembleStep, ensemble_steps
from trident.core.config.golden import (
    GoldenRequest,
    golden_requests,
)
from trident.core.config.placement import DeviceKind, Placement, placement_changes, placements
from trident.core.config.platforms import is_ensemble
from trident.core.config.problem import InvalidModelConfig, ModelSignature
from trident.core.config.resolve import (
    PAYLOAD_LOG,
    WarmupSample,
    backend_spec,
    bucket_samples,
    initial_states,
    resolve_model_spec,
    switch,
    warmup_samples,
    with_graph_labels,
)
from trident.core.config.schema import ModelConfig, ModelInstanceGroup, copy_of, parse_config_override
from trident.core.config.spec import ModelSpec
from trident.core.errors import (
    ConfigInvalid,
    DeviceLost,
    ModelLoadFailed,
    OutOfMemory,
    RepositoryUnavailable,
    ServerError,
)
from trident.core.lifecycle.attempt import LoadAttempt
from trident.core.lifecycle.ensembles import SchedulerProbe, compose_model
from trident.core.lifecycle.golden_check import check_golden
from trident.core.lifecycle.memory import CPU, CPU_FACTOR, Need
from trident.core.lifecycle.options import EngineOptions
from trident.core.lifecycle.parts import EngineParts
from trident.core.lifecycle.version import FindSteps, ModelVersion
from trident.core.memo import Memo
from trident.core.repository.config import check_checksums, check_config, load_config, read_config
from trident.core.repository.content_digest import ContentDigest
from trident.core.repository.layout_hints import layout_hint, unread_configuration
from trident.core.repository.layouts import SingleModelSource
from trident.core.repository.repository import (
    ModelDirectory,
    available_versions,
    chmod_hint,
    detection_files,
    read_labels,
    version_path,
)
from trident.core.repository.sources import Located, size_of
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.rate_limiter import InstanceReservations
from trident.core.scheduling.run_once import run_once
from trident.core.scheduling.scheduler import Scheduler, row_of

_log = logging.getLogger("trident.lifecycle")
_COMPLETED_AT_MOST = 10_000


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

    `models` is what the loaded models ask other models through; it is set before the first load.
    """

    def __init__(self, options: EngineOptions, backends: BackendRegistry, parts: EngineParts) -> None:
        self._options = options
        self._backends = backends
        self._threads = 0
        self._parts = parts
        self.regions = parts.regions
        self.memory = parts.memory
        self.slots = LoadSlots(options.load_threads)
        self.models: BlsClient | None = None
        # Completed configurations, by those that they were completed from.
        self._completed: Memo[Hashable, tuple[ModelConfig, ModelSignature]] = Memo(_COMPLETED_AT_MOST)

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
                if unread := unread_configuration(directory):
                    _log.warning("model '%s': %s is not read as its configuration: %s", name, *unread)
            if isinstance(located.source, SingleModelSource):  # it is served under the name that it was given
                config.name = name
            check_config(directory, config, self._backends, auto_complete=auto_complete)
            available = tuple(available_versions(config, directory))
            return Prepared(located, config, available, "" if available else layout_hint(directory, config))
        except OSError as error:
            hint = chmod_hint(fetched.directory.path) if isinstance(error, PermissionError) else None
            reason = f"{error.strerror}: {error.filename}"
            raise RepositoryUnavailable(f"failed to read model '{name}': {reason}", hint=hint, model=name) from error
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
        """LOADING -> READY, or UNAVAILABLE with the reason after as many retries as the options allow, or when its
        attempt is ended.

        `find_steps` finds the versions that the steps of an ensemble run on. Waits for its turn: the options limit how
        many versions load at the same time.
        """
        with self.slots.taken(version.name, version.attempt):
            for number in range(self._options.load_retries + 1):
                _log.info("loading: %s:%d%s", version.name, version.version, version.origin)
                work = partial(self._load_once, prepared, version, find_steps)
                failure = version.attempt.run(work, self._options.load_timeout_s)
                if failure is None:
                    return
                _log.error(
                    "failed to load '%s' version %d%s: %s%s",
                    version.name,
                    version.version,
                    version.origin,
                    failure.reason,
                    f" ({failure.hint})" if failure.hint else "",
                    extra={"model": version.name, "attempt": number + 1},
                )
                if isinstance(failure, DeviceLost):
                    self._parts.on_device_lost(failure.device)
                if number == self._options.load_retries or version.attempt.is_ended:
                    version.fail(failure)
                    return

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
        # Another one: that of the load has succeeded.
        version.attempt = LoadAttempt(version.name)
        failure = version.attempt.run(partial(self._change_instances, version, config), self._options.load_timeout_s)
        if failure is not None:
            if isinstance(failure, DeviceLost):
                self._parts.on_device_lost(failure.device)
            raise failure

    def _change_instances(self, version: ModelVersion, config: ModelConfig) -> None:
        removed, wanted = placement_changes(version.placements, placements(config))
        added: list[BackendInstance] = []
        samples = _with_buckets(warmup_samples(config, version.directory.path), version.spec)
        context = self._context(version, version.directory)
        probe = row_of(context).probe
        old = {placement.device for placement in version.placements}
        new = {placement.device for placement in wanted} & self.memory.devices.keys() - old
        path = version_path(version.directory, version.version)
        need = dict.fromkeys(new, self._weight_bytes(config, path)) if new else {}
        try:
            with self._taking(version, need, need):
                for placement in wanted:
                    added.append(version.make_instance(placement))
                    version.attempt.watch(partial(_end, added[-1]))
                    version.reservations.add(added[-1], version.name)
                    self._warm_up(version, added[-1], probe(context, added[-1]), samples)
            version.attempt.settle()
        except BaseException as exc:
            version.discard(added)
            if lost := _lost_device(added):
                raise DeviceLost(str(exc), device=lost, model=version.name) from exc
            raise
        version.change_instances(added, removed, config)

    def _load_once(self, prepared: Prepared, version: ModelVersion, find_steps: FindSteps) -> None:
        located = prepared.located
        fetched = located.source.fetch(version.name, located.files, version.version)
        try:
            others = set(prepared.available) - {version.version}
            check_checksums(fetched.directory, prepared.config, without=others)
            version.content = ContentDigest(fetched.directory, version.version)
            least = self._need_of(fetched.directory, prepared.config, version.version) if self.memory.devices else {}
            need = least
            if self.memory.budget is not None and CPU in least:
                least[CPU] = max(least[CPU], size_of(located.files, (version.version,)))
                need = {**least, CPU: int(least[CPU] * CPU_FACTOR)}
            with self._taking(version, need, least):
                version.attempt.begin("the completion of its configuration")
                preparation = Preparation(self._threads)
                signature = self._configure(fetched.directory, prepared, version, preparation)
                model, instances, scheduler = self._load_model(
                    fetched.directory, version, signature, preparation, find_steps
                )
            try:
                devices = {(each.placement.kind, each.placement.device_id) for each in instances}
                if len(devices) == 1:  # the label of its metrics
                    ((kind, device_id),) = devices
                    is_known = kind is DeviceKind.GPU and device_id < len(self._parts.gpu_uuids)
                    version.gpu_uuid = self._parts.gpu_uuids[device_id] if is_known else None
                version.attempt.settle()
                version.serve(model, instances, scheduler, fetched)
            except BaseException:
                _close_loaded(model, instances, version)
                raise
        except BaseException:
            fetched.release()
            if version.memory is not None:
                version.memory.release()
                version.memory = None
            raise

    def _load_model(
        self,
        directory: ModelDirectory,
        version: ModelVersion,
        signature: ModelSignature | None,
        preparation: Preparation,
        find_steps: FindSteps,
    ) -> tuple[BackendModel, list[BackendInstance], Scheduler]:
        """Return the model, its instances, warmed up and checked, and the scheduler of the instances."""
        attempt, config = version.attempt, version.config
        attempt.begin("the load of its weights")
        golden = golden_requests(directory.path, version.spec, version.version)
        if is_ensemble(config):
            model: BackendModel = compose_model(version, find_steps)
            placed: tuple[Placement, ...] = ()
            samples: list[WarmupSample] = []
        else:
            placed = placements(config)
            samples = warmup_samples(config, directory.path)
            self._context(version, directory)  # a wrong one costs no load
            model = self._load_weights(directory, version, placed, signature, preparation)
            samples = _with_buckets(samples, version.spec)
        instances: list[BackendInstance] = []
        try:
            if self._parts.rate_limiter is None and any(placement.limit.needs for placement in placed):
                _log.warning(
                    "model '%s' has a rate_limiter, but the server has none: start it with "
                    "--rate-limit=execution_count",
                    version.name,
                )
            version.reservations = InstanceReservations(self._parts.rate_limiter)
            context = self._context(version, directory)
            row = row_of(context)
            if isinstance(model, StartingModel):
                attempt.watch(model.end_starts)
            for placement in placed:
                attempt.begin(f"the start of instance '{placement.name}'")
                instances.append(model.instance(placement))
                attempt.watch(partial(_end, instances[-1]))
                version.reservations.add(instances[-1], version.name)
                self._warm_up(version, instances[-1], row.probe(context, instances[-1]), samples)
            scheduler = row.make(context, instances)
            if not instances:
                probe = SchedulerProbe(version.name, scheduler)
                attempt.watch(partial(_end, probe))
                because = f"the load of ensemble '{version.name}', which asked, ended: "
                attempt.watch(lambda reason: version.end_given_up(because + reason, for_good=False))
                self._check_golden(version, probe, golden)
            # One instance per device: those on one device share a session, and so give the same answers.
            for instance in {instance.placement.device: instance for instance in instances}.values():
                with version.reservations.held(instance):
                    self._check_golden(version, row.probe(context, instance), golden)
            for wrap in self._parts.wraps:
                scheduler = wrap(scheduler, version, context)
        except BaseException as exc:
            _close_loaded(model, instances, version)
            if lost := _lost_device(instances):
                raise DeviceLost(str(exc), device=lost, model=version.name) from exc
            raise
        return model, instances, scheduler

    def _load_weights(
        self,
        directory: ModelDirectory,
        version: ModelVersion,
        placed: tuple[Placement, ...],
        signature: ModelSignature | None,
        preparation: Preparation,
    ) -> BackendModel:
        backend = self._backends.find(version.config)
        model = backend.load(
            LoadContext(
                path=version_path(directory, version.version),
                config=version.config,
                spec=backend_spec(version.spec),
                placements=placed,
                threads=self._threads,
                models=self.models,
                metrics=self._parts.metrics,
                signature=signature,
                memory_limit=partial(self.memory.limit, version.name),
                prepared=preparation.take,
            )
        )
        spec = with_graph_labels(version.spec, version.config, model.labels)
        if isinstance(model, TriedModel) and model.separated_because:
            spec = spec.separated()
            version.restriction = (
                "each request is executed alone, because a trial has shown that the graph does not keep the requests "
                f"of a batch apart: {model.separated_because}"
            )
        version.configure(version.config, spec)
        return model

    def _context(self, version: ModelVersion, directory: ModelDirectory) -> SchedulingContext:
        """Raises ConfigInvalid if the initial states of sequences cannot be read."""
        config, sequence = version.config, version.spec.sequence
        return SchedulingContext(
            version.spec,
            version.statistics,
            window=self._options.response_window,
            reservations=version.reservations,
            on_poisoned=lambda instance: self._parts.on_device_lost(instance.placement.device),
            initial_states={} if sequence is None else initial_states(config, sequence.states, directory.path),
            steps=tuple(zip(ensemble_steps(config), version.steps, strict=True)),
            max_in_flight=config.ensemble_scheduling.max_inflight_requests,
            # Of a decoupled step, through the later steps and to the client.
            preserves_order=switch(config, PRESERVE_ORDER, default=True),
            delay_until=self._options.delay_scheduler,
            backlog_delay_until=self._options.backlog_delay_scheduler,
        )

    def _need_of(self, directory: ModelDirectory, written: ModelConfig, version: int) -> dict[str, int]:
        """Return the least memory that a model needs by device of the ledger, from its configuration as it is written.

        Empty for a configuration that is wrong; its load will say so. The groups are not expanded: their counts are
        unchecked and may be huge.
        """
        config = copy_of(written)
        fill_identity(config, directory.name, detection_files(directory))
        try:
            normalize(config, self._backends.gpu_ids(config))
            size = self._weight_bytes(config, version_path(directory, version))
        except ServerError:
            return {}
        found: set[str] = set()
        for group in config.instance_group:
            if not group.passive:
                is_on_gpus = group.kind == ModelInstanceGroup.KIND_GPU
                found.update((f"gpu:{gpu}" for gpu in group.gpus) if is_on_gpus else [CPU])
        return dict.fromkeys(found & self.memory.devices.keys(), size)

    def _weight_bytes(self, config: ModelConfig, path: Path) -> int:
        backend = self._backends.find(config)
        return backend.weight_bytes(path, config) if isinstance(backend, WeighingBackend) else 0

    @contextmanager
    def _taking(self, version: ModelVersion, need: Need, least: Need) -> Iterator[None]:
        """Load `version` inside, if there is the memory that it needs, and note what it takes.

        Raises OutOfMemory.
        """
        if not need:
            yield
            return
        with self.memory.load(version.name, (version.name, version.version, *least.items()), need, least) as new:
            yield
        if version.memory is None:
            version.memory = new
            new.processes = lambda: [each.resident_bytes for each in version.processes()]
            self.memory.keep(new)
        else:
            version.memory.add(new)
        for device, taken in new.taken.items():
            _log.info("model '%s' version %d took %d bytes of %s", version.name, version.version, taken, device)

    def _configure(
        self, directory: ModelDirectory, prepared: Prepared, version: ModelVersion, preparation: Preparation
    ) -> ModelSignature | None:
        """Complete the configuration. Returns the signature of the graph, if it was completed from that.

        A graph that was read is not read again for the same files: models on demand are loaded over and over.
        """
        written = prepared.config
        key = version.name, version.version, prepared.located.files, written.SerializeToString(deterministic=True)
        known = self._completed.get(key)
        signature: ModelSignature | None = None
        if known is not None:
            config, signature = copy_of(known[0]), known[1]
        else:
            config, signature = load_config(
                directory,
                written,
                self._backends,
                auto_complete=self._options.auto_complete,
                version=version.version,
                watch=version.attempt.watch,
                preparation=preparation,
            )
            if signature is not None and self._options.control_mode == "demand":
                self._completed[key] = copy_of(config), signature
        version.configure(config, resolve_model_spec(config, version.version, read_labels(directory, config)))
        version.trace_with(self._parts.tracer)
        version.log_with(self._parts.payload_log if switch(config, PAYLOAD_LOG, default=True) else None)
        version.measure(self._options.latencies)
        return signature

    def _warm_up(
        self,
        version: ModelVersion,
        instance: BackendInstance,
        probe: BackendInstance,
        samples: Sequence[WarmupSample],
    ) -> None:
        """`probe` executes on `instance`."""
        for sample in samples:
            for iteration in range(sample.count):
                version.attempt.begin(f"warmup sample '{sample.name}' on instance '{instance.placement.name}'")
                _log.debug(
                    "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                    version.name,
                    instance.placement.name,
                    sample.name,
                    iteration + 1,
                )
                try:
                    requests = [sample.request(version.spec) for _ in range(sample.batch_size)]
                    with version.reservations.held(instance):
                        run_once(probe, requests, version.check)
                except ServerError as error:
                    kind = OutOfMemory if isinstance(error, OutOfMemory) else ConfigInvalid
                    raise kind(sample.failure(error.message), hint=error.hint) from error

    def _check_golden(self, version: ModelVersion, probe: BackendInstance, golden: Sequence[GoldenRequest]) -> None:
        for request in golden:
            version.attempt.begin(f"golden request '{request.name}' on instance '{probe.placement.name}'")
            check_golden(probe, version.spec, version.check, [request])


class LoadSlots:
    """At most `limit` loads at once, those that wait for others not counted. Any thread."""

    def __init__(self, limit: int) -> None:
        self._changed = threading.Condition()
        # --- guarded by the condition
        self._free = max(1, limit)
        # The models that are being loaded, and for each the models for whose change it waits.
        self._loading: Counter[str] = Counter()
        self._waits: dict[str, Counter[str]] = {}

    @contextmanager
    def taken(self, model: str, attempt: LoadAttempt) -> Iterator[None]:
        """The load of a version of `model`. Waits for a slot; an attempt that is ended needs none."""
        attempt.watch(self._look)
        with self._changed:
            self._changed.wait_for(lambda: self._free > 0 or attempt.is_ended)
            slots = min(self._free, 1)
            self._free -= slots
            self._loading[model] += 1
        try:
            yield
        finally:
            with self._changed:
                self._loading[model] -= 1
                self._give_back(slots)

    def _look(self, because: str) -> None:
        with self._changed:
            self._changed.notify_all()

    def _give_back(self, slots: int) -> None:
        self._free += slots
        self._changed.notify_all()

    @contextmanager
    def released(self, asker: str, asked: str) -> Iterator[None]:
        """The change of the model `asked` for which `asker` waits; the slot of its load is free meanwhile.

        Raises ModelLoadFailed if the change waits for the load of `asker`.
        """
        with self._changed:
            is_loading = self._loading[asker] > 0
            if is_loading:
                if self._waits_for(asked, asker):
                    raise ModelLoadFailed(
                        f"model '{asker}' cannot ask for '{asked}' while it is being loaded itself: each would wait "
                        "for the other",
                        hint="ask in `execute`, or let a client load the models one after the other",
                        model=asker,
                    )
                waits = self._waits.setdefault(asker, Counter())
                is_first = not waits
                waits[asked] += 1
                if is_first:
                    self._give_back(1)
        if not is_loading:
            yield
            return
        try:
            yield
        finally:
            with self._changed:
                waits[asked] -= 1
                if not +waits:
                    del self._waits[asker]
                    self._changed.wait_for(lambda: self._free > 0)
                    self._free -= 1

    def _waits_for(self, model: str, other: str) -> bool:
        return model == other or any(self._waits_for(each, other) for each in +self._waits.get(model, Counter()))


def _with_buckets(samples: Sequence[WarmupSample], spec: ModelSpec) -> list[WarmupSample]:
    """`samples`, and one for each batch bucket."""
    buckets = bucket_samples(spec, samples)
    if buckets:  # the reason why the load takes longer, perhaps much longer
        _log.info(
            "model '%s': each instance runs its %d batch buckets once before it is ready", spec.name, len(buckets)
        )
    return [*samples, *buckets]


def _lost_device(instances: Sequence[BackendInstance]) -> str:
    """The device of an instance that can execute nothing again; "" without one."""
    return next((instance.placement.device for instance in instances if instance.poisoned), "")


def _close_loaded(model: BackendModel, instances: Sequence[BackendInstance], version: ModelVersion) -> None:
    for instance in instances:
        version.reservations.remove(instance)
        instance.close()
    model.close()


def _end(instance: BackendInstance, reason: str) -> None:
    if isinstance(instance, EndableInstance):
        instance.abort(reason, for_good=True)
