"""The host images of instances with GPUs: each has a driver, which has to suffice for the CUDA of the container.

Source: botocore's model of the API, `InferenceAmiVersion` and `TransformAmiVersion`; docs/gpu.md.
"""

from __future__ import annotations

import re
from argparse import Namespace
from typing import NamedTuple

from deploy.sagemaker.plan import BadSettings, Kind
from trident.core.cuda.versions import LEAST_DRIVERS


class HostImage(NamedTuple):
    """`driver` is the first part of its version."""

    name: str
    driver: int


# The oldest driver first.
_ENDPOINT = (
    HostImage("al2-ami-sagemaker-inference-gpu-3-1", 550),
    HostImage("al2023-ami-sagemaker-inference-gpu-4-1", 580),
)
_BATCH = (HostImage("al2-ami-sagemaker-batch-gpu-470", 470), HostImage("al2-ami-sagemaker-batch-gpu-535", 535))
_HAS_GPUS = re.compile(r"ml\.[gp]\d")
# By the CUDA of an image, instances with GPUs that it has no code for: CUDA 13 begins with Turing, and the libraries of
# the image with CUDA 12 end with Hopper.
_WITHOUT_CODE = {
    "13": (re.compile(r"ml\.p[23]\."), "older than Turing, which CUDA 13 does not support"),
    "12": (re.compile(r"ml\.(g7|p6)"), "Blackwell, for which the image with CUDA 12 has no libraries"),
}
_OTHER = {"13": "12", "12": "13"}


def host_image(given: Namespace) -> str:
    """That of `--ami`, or one whose driver runs `--cuda`; "" for the platform's default, on instances without GPUs.

    Some instance types have driver 470 by default, on which none of the server's images for GPUs runs. Raises
    BadSettings where none has the driver, or the image does not run on the GPUs.
    """
    if given.ami or not _HAS_GPUS.match(given.instance_type):
        return str(given.ami)
    without_code, why = _WITHOUT_CODE[given.cuda]
    if without_code.match(given.instance_type):
        raise BadSettings(
            f"the GPUs of {given.instance_type} are {why}", hint=_use_the_image_with(_OTHER[given.cuda], given.cuda)
        )
    if found := _found(given):
        return found.name
    newest = _choices(given)[-1]
    raise BadSettings(
        f"CUDA {given.cuda} needs driver {_least(given)}, and --kind {given.kind} has up to {newest.driver}",
        hint=f"{_use_the_image_with('12', given.cuda)}; or give --ami",
    )


def reason(given: Namespace) -> str:
    """Why that host image was chosen; "" if none was."""
    if given.ami or not _HAS_GPUS.match(given.instance_type) or not (found := _found(given)):
        return ""
    return (
        f"host image {found.name}: {given.instance_type} has GPUs, CUDA {given.cuda} (--cuda) needs driver "
        f"{_least(given)} or later, and this one has {found.driver}; --ami names another"
    )


def _choices(given: Namespace) -> tuple[HostImage, ...]:
    return _BATCH if given.kind is Kind.BATCH else _ENDPOINT


def _least(given: Namespace) -> str:
    return LEAST_DRIVERS[int(given.cuda)]


def _found(given: Namespace) -> HostImage | None:
    needed = int(_least(given).partition(".")[0])
    return next((each for each in _choices(given) if each.driver >= needed), None)


def _use_the_image_with(cuda: str, instead_of: str) -> str:
    build = "docker build --target gpu" + (" --build-arg CUDA=12" if cuda == "12" else "")
    return f"use the image with CUDA {cuda} in place of {instead_of} ({build}), and say --cuda {cuda}"
