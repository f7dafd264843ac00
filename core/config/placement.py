"""Where the instances of a model run: the instance groups of a normalised configuration, expanded one by one.

Source: Triton model configuration, `instance_group`; spec/model-config.md section 2.5.
"""

from __future__ import annotations

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
