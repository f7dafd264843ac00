"""tritonserver's options without effect here: accepted and checked, so that a tritonserver command line works.

Source: docs/spec/server-options.md section 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.settings.option import Option, variable_of
from app.settings.option_types import (
    BOOLEAN,
    FOLDER,
    INTEGER,
    INTEGER64,
    BadValue,
    Kind,
    pair,
    setting,
)


def _response_pool(text: str) -> int:
    size = INTEGER.parse(text)
    if size <= 0:
        raise BadValue("Error: --grpc-max-response-pool-size must be greater than 0.")
    return size


_UNUSED: dict[str, dict[str, Kind[Any]]] = {
    "Model repository": {
        "model-load-gpu-limit": pair("model-load-gpu-limit", "device id", "fraction"),
        "enable-peer-access": BOOLEAN,
        "repoagent-directory": FOLDER,
    },
    "gRPC": {
        "grpc-infer-allocation-pool-size": INTEGER,
        "grpc-max-response-pool-size": Kind("integer", _response_pool),
        "grpc-http2-max-pings-without-data": INTEGER,
    },
    "Memory, devices": {
        "cache-directory": FOLDER,
        "pinned-memory-pool-byte-size": INTEGER64,
        "cuda-memory-pool-byte-size": pair("cuda-memory-pool-byte-size", "device id", "bytes"),
        "cuda-virtual-address-size": pair("cuda-virtual-address-size", "device id", "bytes"),
        "buffer-manager-thread-count": INTEGER,
        "host-policy": setting("host-policy", "policy name"),
    },
}
_REPEATABLE = frozenset(
    {
        "model-load-gpu-limit",
        "cuda-memory-pool-byte-size",
        "cuda-virtual-address-size",
        "host-policy",
    }
)


def _options() -> Iterator[Option]:
    for section, kinds in _UNUSED.items():
        for flag, kind in kinds.items():
            yield Option(
                flag=flag,
                kind=kind,
                help="",
                section=section,
                variable=variable_of(flag),
                repeatable=flag in _REPEATABLE,
            )


UNUSED_OPTIONS: tuple[Option, ...] = tuple(_options())
