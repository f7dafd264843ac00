"""The machines of a model: their options and messages.

Source: docs/spec/deploy.md section 5; the names of the metrics are from the documentation of AutoscalingMetricSpec.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from google.cloud.aiplatform_v1 import (
    AcceleratorType,
    AutoscalingMetricSpec,
    BatchDedicatedResources,
    DedicatedResources,
    MachineSpec,
)

from app.settings.option import BadOption
from app.settings.sources import nearest
from deploy.vertex.labels import pairs

_ONLINE = "aiplatform.googleapis.com/prediction/online"
METRICS = {
    "cpu": f"{_ONLINE}/cpu/utilization",
    "accelerator": f"{_ONLINE}/accelerator/duty_cycle",
    "requests": f"{_ONLINE}/request_count",
}
_PERCENT = ("cpu", "accelerator")


def add_machine_options(parser: ArgumentParser, *, least: str) -> None:
    """Add the options; `least` is the flag for the initial number of machines."""
    parser.add_argument("--machine-type", required=True, metavar="TYPE", help="such as n1-standard-4 or g2-standard-4")
    parser.add_argument("--accelerator", default="", metavar="TYPE[=N]", help="such as NVIDIA_L4=1")
    parser.add_argument(
        least, type=int, default=1, metavar="N", dest="least", help="initial number of machines; default: 1"
    )
    parser.add_argument(
        "--max-replicas", type=int, metavar="N", help="largest number of machines; default: the initial number"
    )


def add_online_options(parser: ArgumentParser) -> None:
    parser.add_argument("--spot", action="store_true", help="cheaper machines that may be reclaimed at any time")
    parser.add_argument(
        "--autoscale",
        action="append",
        default=[],
        metavar="METRIC=TARGET",
        help=f"scaling target: {' or '.join(METRICS)}; in percent, or requests per minute",
    )


def dedicated_resources(options: Namespace) -> DedicatedResources:
    """The machines of a deployed model. Raises BadOption."""
    least, most = _replicas(options, "--min-replicas")
    return DedicatedResources(
        machine_spec=_machine(options),
        min_replica_count=least,
        max_replica_count=most,
        autoscaling_metric_specs=_targets(options),
        spot=options.spot,
    )


def batch_resources(options: Namespace) -> BatchDedicatedResources:
    """The machines of a batch prediction job. Raises BadOption."""
    least, most = _replicas(options, "--replicas")
    return BatchDedicatedResources(machine_spec=_machine(options), starting_replica_count=least, max_replica_count=most)


def _replicas(options: Namespace, flag: str) -> tuple[int, int]:
    least: int = options.least
    most: int = least if options.max_replicas is None else options.max_replicas
    if least < 1:
        raise BadOption.of(flag, "it takes 1 or more")
    if most < least:
        raise BadOption.of("--max-replicas", f"{most} is less than {flag}={least}")
    return least, most


def _machine(options: Namespace) -> MachineSpec:
    if not options.accelerator:
        return MachineSpec(machine_type=options.machine_type)
    name, _, count = options.accelerator.partition("=")
    if name not in AcceleratorType.__members__ or name == "ACCELERATOR_TYPE_UNSPECIFIED":
        found = nearest(name.upper(), list(AcceleratorType.__members__))
        raise BadOption.of("--accelerator", f"'{name}' is not a type of accelerator{found}")
    if count and not (count.isdecimal() and int(count)):
        raise BadOption.of("--accelerator", f"'{count}' is not a number of accelerators")
    return MachineSpec(
        machine_type=options.machine_type,
        accelerator_type=AcceleratorType.__members__[name],
        accelerator_count=int(count or 1),
    )


def _targets(options: Namespace) -> list[AutoscalingMetricSpec]:
    found = []
    for name, text in pairs(options.autoscale, "--autoscale").items():
        if name not in METRICS:
            raise BadOption.of("--autoscale", f"'{name}' is none of {', '.join(METRICS)}{nearest(name, METRICS)}")
        if not (text.isdecimal() and int(text)) or (name in _PERCENT and int(text) > 100):
            raise BadOption.of("--autoscale", f"'{text}' is not a target for {name}")
        if name == "accelerator" and not options.accelerator:
            raise BadOption.of("--autoscale", "accelerator needs --accelerator")
        found.append(AutoscalingMetricSpec(metric_name=METRICS[name], target=int(text)))
    return found
