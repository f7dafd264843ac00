"""Where the instances of a model run: the instance groups of a normalised configuration, expanded one by one.

Source: Triton model configuration, `instance_group`; docs/spec/model-config.md section 2.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from core.config.schema import ModelConfig, ModelInstanceGroup


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one instance runs: `kind` is "CPU" or "GPU"; `device_id` counts GPUs; `name` is `GROUP_c`."""

    name: str
    kind: str
    device_id: int = 0

    @property
    def device(self) -> str:
        """`cpu` or `gpu:0`, as tables and statistics show it."""
        return "cpu" if self.kind == "CPU" else f"gpu:{self.device_id}"


def placements(config: ModelConfig) -> tuple[Placement, ...]:
    """One placement per instance, in the order of groups, counts and GPUs; instances on different GPUs share a name.

    KIND_MODEL leaves the device to the backend and counts as CPU here. Passive groups are not scheduled and get none.
    """
    expanded: list[Placement] = []
    for group in config.instance_group:
        if group.passive:
            continue
        for number in range(group.count):
            name = f"{group.name}_{number}"
            if group.kind == ModelInstanceGroup.KIND_GPU:
                expanded += [Placement(name, "GPU", device_id) for device_id in group.gpus]
            else:
                expanded.append(Placement(name, "CPU"))
    return tuple(expanded)


def placement_changes(current: Sequence[Placement], wanted: Sequence[Placement]) -> tuple[list[int], list[Placement]]:
    """What turns `current` into `wanted`: the indices to remove, the highest first, and the placements to add.

    Only kind and device count. An instance that stays under another name keeps the old one; of those on one device the
    last ones go, and the last ones wanted come. Source: docs/spec/repository.md section 1.6, "What reloads".
    """
    unmatched = Counter(_signature(placement) for placement in current)
    added: list[Placement] = []
    for placement in wanted:
        if unmatched[_signature(placement)]:
            unmatched[_signature(placement)] -= 1
        else:
            added.append(placement)
    removed: list[int] = []
    for index in reversed(range(len(current))):
        if unmatched[_signature(current[index])]:
            unmatched[_signature(current[index])] -= 1
            removed.append(index)
    return removed, added


def _signature(placement: Placement) -> tuple[str, int]:
    return placement.kind, placement.device_id
