"""The input of smoke calls: one request of the v2 protocol in JSON, and its other forms."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.settings.option import BadOption
from app.settings.sources import nearest
from core.inference.tensors import BY_NAME, element_count, pack_bytes

BINARY_TYPE = "application/vnd.vertex-ai-triton.binary+json;json-header-size={}"
# Too large for a shared endpoint, but not for the others.
LARGE_BYTES = 1_600_000
_LITTLE = "<"


@dataclass(frozen=True, slots=True)
class SmokeInput:
    """`document` is the request, `text` its JSON as sent; `instances` are for `predict`."""

    document: dict[str, Any]
    text: bytes
    instances: list[Any]

    @property
    def output_names(self) -> list[str]:
        """The requested outputs; empty for all."""
        return [each["name"] for each in self.document.get("outputs", ())]

    def large(self) -> bytes:
        """The request padded to a size that only dedicated and private endpoints accept."""
        return self.text + b" " * (LARGE_BYTES - len(self.text))

    def binary(self) -> tuple[bytes, str]:
        """The request with binary inputs and outputs, and its content type."""
        tensors, parts = [], []
        for each in self.document["inputs"]:
            packed = _packed(each)
            head = {name: each[name] for name in ("name", "shape", "datatype")}
            tensors.append({**head, "parameters": {"binary_data_size": len(packed)}})
            parts.append(packed)
        outputs = [{"name": name, "parameters": {"binary_data": True}} for name in self.output_names]
        asked: dict[str, Any] = {"outputs": outputs} if outputs else {"parameters": {"binary_data_output": True}}
        head_text = json.dumps({"inputs": tensors, **asked}).encode()
        return head_text + b"".join(parts), BINARY_TYPE.format(len(head_text))


def read_smoke_input(request: Path, instances: Path | None) -> SmokeInput:
    """Read the files. Without `instances` they are made from the first dimension of the request. Raises BadOption."""
    text = _read(request, "--request")
    document = _parsed(text, request, "--request")
    tensors = document.get("inputs") if isinstance(document, dict) else None
    if not isinstance(tensors, list) or not tensors:
        raise BadOption.of("--request", f"{request} is not a request of the v2 protocol: it needs 'inputs', a list")
    for each in tensors:
        _check_tensor(each, request)
    if instances is None:
        return SmokeInput(document, text, _instances(tensors))
    given = _parsed(_read(instances, "--instances"), instances, "--instances")
    found = given.get("instances") if isinstance(given, dict) else None
    if not isinstance(found, list) or not found:
        raise BadOption.of("--instances", f"{instances} needs 'instances', a non-empty list")
    return SmokeInput(document, text, found)


def _read(path: Path, flag: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadOption.of(flag, f"{path}: {error.strerror}") from None


def _parsed(text: bytes, path: Path, flag: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadOption.of(flag, f"{path} is not JSON: {error}") from None


def _check_tensor(tensor: Any, path: Path) -> None:
    if not isinstance(tensor, dict) or not {"name", "shape", "datatype", "data"} <= tensor.keys():
        raise BadOption.of("--request", f"{path}: an input needs name, shape, datatype and data")
    name, datatype = tensor["name"], str(tensor["datatype"])
    if datatype not in BY_NAME:
        raise BadOption.of("--request", f"{path}: input '{name}': no such datatype{nearest(datatype, BY_NAME)}")
    try:
        fits = _array(tensor).size == element_count(tensor["shape"])
    except (ValueError, TypeError, OverflowError) as error:
        raise BadOption.of("--request", f"{path}: input '{name}': {error}") from None
    if not fits:
        raise BadOption.of("--request", f"{path}: input '{name}': its data does not fill its shape {tensor['shape']}")


def _array(tensor: dict[str, Any]) -> np.ndarray[Any, Any]:
    datatype = tensor["datatype"]
    if datatype == "BF16":
        raise ValueError("BF16 has no form in JSON")
    return np.array(tensor["data"], BY_NAME[datatype].dtype)


def _packed(tensor: dict[str, Any]) -> bytes:
    array = _array(tensor)
    if tensor["datatype"] == "BYTES":
        return bytes(pack_bytes(str(each).encode() for each in array.reshape(-1)))
    return array.astype(array.dtype.newbyteorder(_LITTLE)).tobytes()


def _instances(tensors: Sequence[dict[str, Any]]) -> list[Any]:
    shaped = {each["name"]: np.array(each["data"], object).reshape(each["shape"]) for each in tensors}
    counts = {array.shape[:1] for array in shaped.values()}
    if len(counts) != 1 or counts == {()}:
        raise BadOption.of("--request", "its inputs differ in their first dimension: give --instances=FILE")
    ((count,),) = counts
    return [{name: array.tolist()[index] for name, array in shaped.items()} for index in range(count)]
