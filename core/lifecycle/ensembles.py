"""The model of an ensemble: it has no weights, but holds each version that its steps run on."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trident.core.backends.backend import BackendInstance, Execution, OnChange
from trident.core.config.ensemble import EnsembleStep, compose, ensemble_steps
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.schema import copy_of
from trident.core.config.spec import ModelSpec, OutputSpec
from trident.core.errors import BackendFailed, ConfigInvalid, ModelNotReady
from trident.core.inference.pending_request import CancelCause, PendingRequest, ResponseSender
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, Outputs
from trident.core.lifecycle.version import FindSteps, ModelVersion
from trident.core.observability.statistics import ModelProcessMetrics
from trident.core.scheduling.scheduler import Scheduler


class ComposedModel:
    """Implements BackendModel without instances. `versions[i]` runs step i; all of them accept requests until `close`,
    though they are unloaded or replaced meanwhile.
    """

    def __init__(self, versions: Sequence[ModelVersion]) -> None:
        """Raises ModelNotReady if one of them is already being unloaded; then none is held."""
        self.labels: Mapping[str, tuple[str, ...]] = {}
        self.versions = tuple(versions)
        held: list[ModelVersion] = []
        try:
            for version in dict.fromkeys(versions):
                version.hold()
                held.append(version)
        except ModelNotReady:
            _release(held)
            raise

    def describe(self) -> dict[str, str]:
        return {"execution provider": f"ensemble of {len(self.versions)} steps"}

    def watch(self, on_change: OnChange) -> None:
        """Do nothing: an ensemble has no instances."""

    @property
    def trouble(self) -> str:
        return next((version.trouble for version in self.versions if version.trouble), "")

    def check_ready(self) -> None:
        """Raises ModelNotReady if the model of a step says that it is not ready."""
        for version in set(self.versions):
            if not version.answers_ready():
                raise ModelNotReady(f"the model '{version.name}' is not ready")

    def processes(self) -> list[ModelProcessMetrics]:
        """Return nothing: the processes of the steps count for their own models."""
        return []

    def instance(self, placement: Placement) -> BackendInstance:
        raise ConfigInvalid("an ensemble has no instances")

    def retain(self, devices: Iterable[str]) -> None:
        """Do nothing: an ensemble has no memory on a device."""

    def close(self) -> None:
        _release(dict.fromkeys(self.versions))


def compose_model(version: ModelVersion, find_steps: FindSteps) -> ComposedModel:
    """Hold the models of the steps of the configured `version`, and complete its configuration from them.

    Raises ConfigInvalid with every problem of the steps with their models.
    """
    steps = ensemble_steps(version.config)
    version.steps = tuple(find_steps(version.name, steps))
    model = ComposedModel(version.steps)
    try:
        specs = [each.spec for each in model.versions]
        composition = compose(version.spec, steps, specs)
        if composition.problems:
            hints = dict.fromkeys(problem.hint for problem in composition.problems if problem.hint)
            messages = (problem.message for problem in composition.problems)
            raise ConfigInvalid("; ".join(messages), hint="; ".join(hints) or None, model=version.name)
    except BaseException:
        model.close()
        raise
    config = copy_of(version.config)
    config.model_transaction_policy.decoupled = composition.is_decoupled
    version.configure(config, _completed(version.spec, steps, specs, composition.is_decoupled))
    return model


def _completed(
    spec: ModelSpec, steps: Sequence[EnsembleStep], models: Sequence[ModelSpec], is_decoupled: bool
) -> ModelSpec:
    """The spec of an ensemble; its outputs without labels have those of the models' outputs that they are."""
    sources: dict[str, OutputSpec] = {}
    for step, model in zip(steps, models, strict=True):
        sources |= {tensor: model.outputs[name] for name, tensor in step.outputs}
    outputs = {
        name: replace(output, labels=sources[name].labels) if name in sources and not output.labels else output
        for name, output in spec.outputs.items()
    }
    return replace(spec, outputs=outputs, decoupled=is_decoupled)


def _release(versions: Iterable[ModelVersion]) -> None:
    for version in versions:
        version.release()


def probe_of(version: ModelVersion, scheduler: Scheduler) -> SchedulerProbe:
    """What executes golden requests on an ensemble that is being loaded; the end of its load ends them."""
    probe = SchedulerProbe(version.name, scheduler)
    because = f"the load of ensemble '{version.name}', which asked, ended: "
    version.attempt.watch(lambda reason: probe.abort(reason, for_good=True))
    version.attempt.watch(lambda reason: version.end_given_up(because + reason, for_good=False))
    return probe


class SchedulerProbe:
    """Implements BackendInstance on a scheduler without instances, that of an ensemble, for golden requests.

    The steps count its requests. A request of a decoupled ensemble gets its first response.
    """

    poisoned = False
    may_run_inline = False
    answers_later = False

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self.placement = Placement(name, DeviceKind.CPU)
        self._scheduler = scheduler
        # The request in flight, and its responses.
        self._pending: PendingRequest | None = None
        self._responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()

    def execute(
        self, requests: Sequence[InferenceRequest], batch_sizes: Sequence[int], senders: Sequence[ResponseSender] = ()
    ) -> Execution:
        outcomes: list[Outputs | Exception] = []
        for request, size in zip(requests, batch_sizes, strict=True):
            responses = self._responses = queue.SimpleQueue()
            pending = self._pending = PendingRequest(request, responses.put)
            pending.batch_size = size
            pending.submit_to(self._scheduler)
            first = last = responses.get()
            while not last.final:
                last = responses.get()
            error = first.error or last.error
            outcomes.append(error if error is not None else first.outputs)
        return Execution(outcomes, 0, 0)

    def abort(self, reason: str, *, for_good: bool) -> None:
        """Answer the request in flight; executions of its steps continue. See EndableInstance."""
        pending, responses = self._pending, self._responses
        if pending is not None:
            pending.cancel(CancelCause.SERVER)
            responses.put(InferenceResponse.failed(pending.request, BackendFailed(reason)))

    def close(self) -> None:
        """Do nothing: there is nothing to free."""
