"""The limits that the platform sets for a container and its clients.

Source: docs/spec/sagemaker.md sections A1, A2 and A5.
"""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformLimits:
    """Times in seconds, sizes in bytes. Tests make them shorter."""

    connect_s: float = 0.25
    """Until the container accepts a connection."""
    ping_s: float = 2.0
    startup_s: float = 480.0
    """From the start until /ping answers 200."""
    probe_interval_s: float = 5.0
    """Between two probes of a container that serves."""
    invoke_s: float = 60.0
    stream_s: float = 480.0
    load_s: float = 360.0
    """A load. A caller that waits for the model gets an error after `invoke_s`."""
    stop_s: float = 30.0
    """From SIGTERM to SIGKILL."""
    body_bytes: int = 25 * _MIB
    """The body of a request, and of an answer that is not streamed."""
    archive_bytes: int = 64 << 30
    """The unpacked size of an archive; less if the disk has less space."""
