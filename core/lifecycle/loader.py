"""Loads the versions of a model from its directory.

It runs on loader threads. A failure becomes the version's reason in the repository index and one log line.
Source: docs/spec/repository.md sections 1.6 and 1.9, docs/spec/model-config.md sections 2.4, 2.5 and 2.8.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from trident.core.backends.backend import (
    BackendInstance,
    BackendModel,
    BlsClient,
    EndableInstance,
    LoadContext,
    StartingModel,
    TriedModel,
)
from trident.core.backends.registry import BackendRegistry
from trident.core.config.autocomplete import Preparation
from trident.core.config.placement import DeviceKind, Placement, placement_changes, placements
from trident.core.config.platforms import is_ensemble
from trident.core.config.resolve import WarmupSample, backend_spec, warmup_samples, with_graph_labels
from trident.core.config.schema import ModelConfig
from trident.core.errors import DeviceLost
from trident.core.lifecycle.attempt import LoadAttempt, LoadSlots
from trident.core.lifecycle.ensembles import compose_model, probe_of
from trident.core.lifecycle.golden_check import golden_check
from trident.core.lifecycle.memory import CPU, CPU_FACTOR, Need
from trident.core.lifecycle.options import EngineOptions
from trident.core.lifecycle.reader import ModelReader, Prepared
from trident.core.lifecycle.version import EngineParts, FindSteps, ModelVersion
from trident.core.lifecycle.warmup import warm_up
from trident.core.repository.config import check_checksums
from trident.core.repository.repository import ModelDirectory, version_path
from trident.core.repository.sources import size_of
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.scheduler import Scheduler, make_probe, make_scheduler

_log = logging.getLogger("trident.lifecycle")


class ModelLoader:
    """Loads versions of models; any number of loader threads at once.

    `models` is what the loaded models ask other models through, and `threads` are those of an execution. Both are set
    before the first load.
    """

    def __init__(self, options: EngineOptions, backends: BackendRegistry, parts: EngineParts) -> None:
        self._options = options
        self._backends = backends
        self.reader = ModelReader(options, backends)
        self.parts = parts
        self.memory = parts.memory
        self.slots = LoadSlots(options.load_threads)
        self.models: BlsClient | None = None
        self.threads = 0

    def load(self, prepared: Prepared, version: ModelVersion, find_steps: FindSteps) -> None:
        """LOADING -> READY, or UNAVAILABLE with the reason after as many retries as the options allow, or when its
        attempt is ended.

        `find_steps` finds the versions that the steps of an ensemble run on. Waits for a slot: the options limit how
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
                    self.parts.on_device_lost(failure.device)
                if number == self._options.load_retries or version.attempt.is_ended:
                    version.fail(failure)
                    return

    def change_instances(self, prepared: Prepared, version: ModelVersion) -> None:
        """Give a serving version the instances that the configuration asks for now; its weights stay.

        Raises InvalidModelConfig, or the error of a new instance; then the version continues unchanged.
        """
        config = self.reader.with_instances(version.config, prepared.config)
        # Another one: that of the load has succeeded.
        version.attempt = LoadAttempt(version.name)
        failure = version.attempt.run(partial(self._change_instances, version, config), self._options.load_timeout_s)
        if failure is not None:
            if isinstance(failure, DeviceLost):
                self.parts.on_device_lost(failure.device)
            raise failure

    def _change_instances(self, version: ModelVersion, config: ModelConfig) -> None:
        removed, wanted = placement_changes(version.placements, placements(config))
        added: list[BackendInstance] = []
        samples = warmup_samples(config, version.directory.path)
        context = self._context(version, version.directory)
        old = {placement.device for placement in version.placements}
        new = {placement.device for placement in wanted} & self.memory.devices.keys() - old
        path = version_path(version.directory, version.version)
        need = dict.fromkeys(new, self.reader.weight_bytes(config, path)) if new else {}
        try:
            with self._taking(version, need, need):
                for placement in wanted:
                    added.append(version.make_instance(placement))
                    version.attempt.watch(partial(_end, added[-1]))
                    version.reservations.add(added[-1], version.name)
                    warm_up(version, added[-1], make_probe(context, added[-1]), samples)
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
            directory = fetched.directory
            check_checksums(directory, prepared.config, without=set(prepared.available) - {version.version})
            version.note_files(directory)
            least: dict[str, int] = {}
            if self.memory.devices:
                least = self.reader.least_need(directory, prepared.config, version.version, self.memory.devices)
            need = least
            if self.memory.budget is not None and CPU in least:
                least[CPU] = max(least[CPU], size_of(located.files, (version.version,)))
                need = {**least, CPU: int(least[CPU] * CPU_FACTOR)}
            with self._taking(version, need, least):
                version.attempt.begin("the completion of its configuration")
                preparation = self.reader.complete(directory, prepared, version, self.threads)
                model, instances, scheduler = self._load_model(directory, version, preparation, find_steps)
            try:
                devices = {(each.placement.kind, each.placement.device_id) for each in instances}
                if len(devices) == 1:  # the label of its metrics
                    ((kind, device_id),) = devices
                    is_known = kind is DeviceKind.GPU and device_id < len(self.parts.gpu_uuids)
                    version.gpu_uuid = self.parts.gpu_uuids[device_id] if is_known else None
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
        self, directory: ModelDirectory, version: ModelVersion, preparation: Preparation, find_steps: FindSteps
    ) -> tuple[BackendModel, list[BackendInstance], Scheduler]:
        """Return the model, its instances, warmed up and checked, and the scheduler of the instances."""
        attempt, config = version.attempt, version.config
        attempt.begin("the load of its weights")
        check = golden_check(version, directory)
        placed: tuple[Placement, ...] = ()
        samples: list[WarmupSample] = []
        if is_ensemble(config):
            model: BackendModel = compose_model(version, find_steps)
        else:
            placed = placements(config)
            samples = warmup_samples(config, directory.path)
            self._context(version, directory)  # a wrong one costs no load
            model = self._load_weights(directory, version, placed, preparation)
        instances: list[BackendInstance] = []
        try:
            context = self._context(version, directory)
            if isinstance(model, StartingModel):
                attempt.watch(model.end_starts)
            for placement in placed:
                attempt.begin(f"the start of instance '{placement.name}'")
                instances.append(model.instance(placement))
                attempt.watch(partial(_end, instances[-1]))
                version.reservations.add(instances[-1], version.name)
                warm_up(version, instances[-1], make_probe(context, instances[-1]), samples)
            scheduler = make_scheduler(context, instances)
            if not instances:
                check(probe_of(version, scheduler))
            # One instance per device: those on one device share a session, and so give the same answers.
            for instance in {instance.placement.device: instance for instance in instances}.values():
                with version.reservations.held(instance):
                    check(make_probe(context, instance))
            for wrap in self.parts.wraps:
                scheduler = wrap(scheduler, version, context)
        except BaseException as exc:
            _close_loaded(model, instances, version)
            if lost := _lost_device(instances):
                raise DeviceLost(str(exc), device=lost, model=version.name) from exc
            raise
        return model, instances, scheduler

    def _load_weights(
        self, directory: ModelDirectory, version: ModelVersion, placed: tuple[Placement, ...], preparation: Preparation
    ) -> BackendModel:
        backend = self._backends.find(version.config)
        model = backend.load(
            LoadContext(
                path=version_path(directory, version.version),
                config=version.config,
                spec=backend_spec(version.spec),
                placements=placed,
                threads=self.threads,
                models=self.models,
                metrics=self.parts.metrics,
                signature=preparation.signature,
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
        context = SchedulingContext(
            version.spec,
            version.statistics,
            window=self._options.response_window,
            reservations=version.reservations,
            on_poisoned=lambda instance: self.parts.on_device_lost(instance.placement.device),
            delay_until=self._options.delay_scheduler,
            backlog_delay_until=self._options.backlog_delay_scheduler,
        )
        context.configure(version.config, directory.path, version.steps)
        return context

    @contextmanager
    def _taking(self, version: ModelVersion, need: Need, least: Need) -> Iterator[None]:
        """Context for loading `version`: checks that there is enough memory, and notes how much it takes.

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


def _lost_device(instances: Sequence[BackendInstance]) -> str:
    return next((instance.placement.device for instance in instances if instance.poisoned), "")


def _close_loaded(model: BackendModel, instances: Sequence[BackendInstance], version: ModelVersion) -> None:
    for instance in instances:
        version.reservations.remove(instance)
        instance.close()
    model.close()


def _end(instance: BackendInstance, reason: str) -> None:
    if isinstance(instance, EndableInstance):
        instance.abort(reason, for_good=True)
