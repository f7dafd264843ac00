"""Regions of shared memory: status, register, unregister. `kind` is system or cuda.

Source: docs/spec/shared-memory.md sections 1, 3 and 4.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from dataclasses import asdict
from typing import Any

from core.errors import InvalidRequest
from core.frontend.request_parameters import NON_STRING, NON_UNSIGNED
from core.frontend.shared_memory import check_allowed, check_handle, check_region_name
from core.http.front_end import HttpFrontEnd
from core.http.reply import JSON, Environ, Reply, empty_reply, json_reply
from core.http.request_body import read_object
from core.shared_memory.region import CudaRegion, RegionKind, SystemRegion

_NO_MEMBER = "attempt to access non-existing object member "
_HANDLE = "raw_handle"
_HANDLE_TEXT = "b64"
_LONGEST_TEXT = 2**31 - 1


def status(front_end: HttpFrontEnd, environ: Environ, kind: str, region: str = "") -> Reply:
    """The regions of the kind by name, or the one in the path."""
    engine = front_end.engine
    found: list[SystemRegion] | list[CudaRegion]
    found = engine.system_regions(region) if RegionKind(kind) is RegionKind.SYSTEM else engine.cuda_regions(region)
    return json_reply([asdict(each) for each in found])


def register(front_end: HttpFrontEnd, environ: Environ, kind: str, region: str = "") -> Reply:
    check_allowed(allowed=front_end.options.allow_client_shm)
    check_region_name(region, kind)
    document = read_object(environ, front_end.options.max_input_size)
    engine = front_end.engine
    if RegionKind(kind) is RegionKind.SYSTEM:
        key = _text(_field(document, "key"), "key")
        offset = _unsigned(document.get("offset", 0), "offset")
        engine.register_system_region(region, key, offset, _unsigned(_field(document, "byte_size"), "byte_size"))
    else:
        handle = _handle(_field(document, _HANDLE))
        byte_size, device_id = [_unsigned(_member(document, name), name) for name in ("byte_size", "device_id")]
        engine.register_cuda_region(region, handle, device_id, byte_size)
    return empty_reply(JSON)


def unregister(front_end: HttpFrontEnd, environ: Environ, kind: str, region: str = "") -> Reply:
    """Remove the region in the path, or all of the kind."""
    check_allowed(allowed=front_end.options.allow_client_shm)
    front_end.engine.unregister_regions(RegionKind(kind), region)
    return empty_reply(JSON)


def _handle(found: Any) -> bytes:
    """The handle of CUDA IPC in the object `found`. Raises InvalidRequest."""
    if type(found) is not dict:
        raise InvalidRequest("attempt to access JSON non-object as object", hint=f"'{_HANDLE}' must be an object")
    text = _text(_member(found, _HANDLE_TEXT), _HANDLE_TEXT)
    if len(text) > _LONGEST_TEXT:
        raise InvalidRequest(f"'{_HANDLE}' exceeds the maximum allowed data size limit INT_MAX")
    try:
        handle = b64decode(text.encode("ascii", "ignore"))
    except Base64Error:
        handle = b""
    check_handle(handle)
    return handle


def _field(document: dict[str, Any], name: str) -> Any:
    if name not in document:
        raise InvalidRequest(f"Shared memory register request has no '{name}' field")
    return document[name]


def _member(document: dict[str, Any], name: str) -> Any:
    if name not in document:
        raise InvalidRequest(f"{_NO_MEMBER}'{name}'")
    return document[name]


def _text(value: Any, name: str) -> str:
    if type(value) is not str:
        raise InvalidRequest(NON_STRING, hint=f"'{name}' must be a string")
    return value


def _unsigned(value: Any, name: str) -> int:
    if type(value) is not int or value < 0:
        raise InvalidRequest(NON_UNSIGNED, hint=f"'{name}' must be a number from 0")
    return value
