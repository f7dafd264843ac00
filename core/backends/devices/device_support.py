"""What one backend of this installation can run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProviderState:
    """One execution provider for a device other than the CPU.

    `installed`: the framework was built with it. `problem` is the linker's message about its library, empty if the
    library loads. `cure` says how to get the provider.
    """

    name: str
    installed: bool
    problem: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True)
class DeviceSupport:
    """`framework` is the name and the version of a backend's framework."""

    framework: str
    providers: Sequence[ProviderState]
