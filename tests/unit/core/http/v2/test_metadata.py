from __future__ import annotations

import orjson

from trident.core.engine.protocol import EXTENSIONS, ModelMetadata, ServerMetadata, TensorMetadata
from trident.core.http.admin import model_metadata_json, server_metadata_json


def test_server_metadata_lists_the_extensions() -> None:
    document = server_metadata_json(ServerMetadata(name="triton", version="1.0"))
    assert orjson.loads(orjson.dumps(document)) == {
        "name": "triton",
        "version": "1.0",
        "extensions": list(EXTENSIONS),
    }
    assert list(document) == ["name", "version", "extensions"]


def test_model_metadata_has_versions_as_texts() -> None:
    metadata = ModelMetadata(
        name="simple",
        versions=(1, 12),
        platform="onnxruntime_onnx",
        inputs=(TensorMetadata(name="IN", datatype="INT32", shape=(-1, 16)),),
        outputs=(),
    )
    assert orjson.dumps(model_metadata_json(metadata)) == (
        b'{"name":"simple","versions":["1","12"],"platform":"onnxruntime_onnx",'
        b'"inputs":[{"name":"IN","datatype":"INT32","shape":[-1,16]}],"outputs":[]}'
    )
