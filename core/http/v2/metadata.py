"""The metadata of the server and of a model as v2 JSON. Versions are texts there.

Source: docs/spec/http.md section 3.
"""

from __future__ import annotations

from typing import Any

from core.engine.metadata import ModelMetadata, ServerMetadata, TensorMetadata


def server_metadata_json(metadata: ServerMetadata) -> dict[str, Any]:
    return {"name": metadata.name, "version": metadata.version, "extensions": metadata.extensions}


def model_metadata_json(metadata: ModelMetadata) -> dict[str, Any]:
    return {
        "name": metadata.name,
        "versions": [str(version) for version in metadata.versions],
        "platform": metadata.platform,
        "inputs": [_tensor(tensor) for tensor in metadata.inputs],
        "outputs": [_tensor(tensor) for tensor in metadata.outputs],
    }


def _tensor(tensor: TensorMetadata) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
