"""Checks of an ensemble's own configuration: its steps, and the flow of tensors through them.

What depends on the models of the steps is checked in `core/config/ensemble/composition.py`.
Source: docs/spec/model-config.md section 2.10.
"""

from __future__ import annotations

from collections.abc import Iterator

from core.config.ensemble.graph import EnsembleStep, ensemble_steps, first_unconnected, reachable
from core.config.platforms import is_ensemble
from core.config.problem import Problem
from core.config.schema import ModelConfig

_STEPS = "ensemble_scheduling.step"


def ensemble_problems(config: ModelConfig, model_name: str) -> list[Problem]:
    """The problems of an ensemble, or of ensemble settings of a model that is not an ensemble."""
    if not is_ensemble(config):
        if not config.HasField("ensemble_scheduling"):
            return []
        text = f"ensemble scheduling cannot be set for model '{model_name}' whose platform is not ensemble"
        return [Problem("ensemble_scheduling", text, 'set platform: "ensemble"')]
    problems = list(_setting_problems(config, model_name))
    if not config.HasField("ensemble_scheduling"):
        text = f"ensemble scheduling must be set for ensemble {model_name} whose platform is ensemble"
        return [Problem("ensemble_scheduling", text), *problems]
    if not config.ensemble_scheduling.step:
        return [*problems, Problem(_STEPS, f"must specify 'step' for ensemble '{model_name}'")]
    steps = ensemble_steps(config)
    unfinished = list(_step_problems(steps, model_name))
    problems += unfinished
    problems += _repeated_outputs(steps, {entry.name for entry in config.input}, model_name)
    # The flow through steps that are not finished would show further problems that are none.
    if not unfinished:
        problems += _flow_problems(config, steps, model_name)
    return problems


def _setting_problems(config: ModelConfig, model_name: str) -> Iterator[Problem]:
    if config.instance_group:
        yield Problem("instance_group", f"instance group should not be specified for ensemble '{model_name}'")
    if config.HasField("optimization"):
        yield Problem("optimization", f"optimization should not be specified for ensemble '{model_name}'")
    if config.model_warmup:
        yield Problem("model_warmup", f"model_warmup can not be specified for ensemble '{model_name}'")


def _step_problems(steps: tuple[EnsembleStep, ...], model_name: str) -> Iterator[Problem]:
    for index, step in enumerate(steps):
        for field, value in (("model_name", step.model), ("input_map", step.inputs), ("output_map", step.outputs)):
            if not value:
                text = f"must specify '{field}' in step {index} of ensemble '{model_name}'"
                yield Problem(f"{_STEPS}[{index}].{field}", text)


def _repeated_outputs(steps: tuple[EnsembleStep, ...], inputs: set[str], model_name: str) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, step in enumerate(steps):
        path = f"{_STEPS}[{index}].output_map"
        for _, tensor in step.outputs:
            if tensor in seen:
                text = f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{model_name}' "
                yield Problem(path, f"{text}step {index}")
            elif tensor in inputs:
                text = f"ensemble tensor '{tensor}' is an input of ensemble '{model_name}', so step {index} cannot "
                yield Problem(path, f"{text}write it", "give the output of the step another name")
            seen.add(tensor)


def _flow_problems(config: ModelConfig, steps: tuple[EnsembleStep, ...], model_name: str) -> Iterator[Problem]:
    inputs = [entry.name for entry in config.input]
    outputs = [entry.name for entry in config.output]
    read = {tensor for step in steps for tensor in step.sources}
    mapped = read | {tensor for step in steps for tensor in step.results}
    there = reachable(steps, inputs)
    for index, name in enumerate(inputs):
        if name not in mapped:
            text = f"ensemble input '{name}' for ensemble {model_name}' is not used"
            yield Problem(f"input[{index}]", text, "no step has it in its 'input_map'")
    for index, name in enumerate(outputs):
        if name not in mapped:
            text = f"ensemble output '{name}' for ensemble {model_name}' is not used"
            yield Problem(f"output[{index}]", text, "no step has it in its 'output_map'")
        elif name not in there:
            yield _unwritten(steps, f"output[{index}]", name, there, model_name)
    for tensor in sorted(mapped - set(outputs)):
        if tensor not in there or tensor not in read:
            text = f"ensemble tensor '{tensor}' is unused in ensemble '{model_name}'"
            yield Problem(_STEPS, text, _unused_hint(tensor, tensor in read))


def _unwritten(
    steps: tuple[EnsembleStep, ...], path: str, output: str, there: frozenset[str], model_name: str
) -> Problem:
    text = f"output '{output}' for ensemble '{model_name}' is not written"
    missing = first_unconnected(steps, output, there)
    if not missing:
        return Problem(path, text, "the steps before it wait for each other in a circle")
    hint = f"no step writes '{missing}', and it is no input of the ensemble"
    return Problem(path, f"{text}: at least one of its depending tensors, '{missing}', is not connected", hint)


def _unused_hint(tensor: str, is_read: bool) -> str:
    if is_read:
        return f"a step reads '{tensor}', but neither an input nor a step that can run provides it"
    return f"no step reads '{tensor}' and it is no output: remove it from the 'output_map'"
