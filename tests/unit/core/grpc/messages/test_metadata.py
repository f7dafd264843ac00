from __future__ import annotations

from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelConfigResponse, ModelMetadataResponse, ServerMetadataResponse

from tests.unit.core.grpc.codec.messages import spec
from trident.core.engine.protocol import ConfigMessage, ServerMetadata, model_metadata
from trident.core.grpc.admin_messages import model_config_message, model_metadata_message, server_metadata_message


def test_the_metadata_of_the_server() -> None:
    metadata = ServerMetadata(name="triton", version="1.2", extensions=("a", "b"))
    wanted = ServerMetadataResponse(name="triton", version="1.2", extensions=["a", "b"])
    assert server_metadata_message(metadata) == wanted.SerializeToString()


def test_the_metadata_of_a_model() -> None:
    message = ModelMetadataResponse.FromString(model_metadata_message(model_metadata(spec(), [1, 3])))
    assert (message.name, list(message.versions), message.platform) == ("simple", ["1", "3"], "onnxruntime_onnx")
    assert [(t.name, t.datatype, list(t.shape)) for t in message.inputs] == [
        ("INPUT0", "INT32", [-1, 16]),
        ("INPUT1", "INT32", [-1, 16]),
    ]
    assert [t.name for t in message.outputs] == ["OUTPUT0", "OUTPUT1"]


def test_the_configuration_of_a_model() -> None:
    for config in (ModelConfig(name="m", max_batch_size=8), ModelConfig()):
        message = ModelConfigResponse.FromString(model_config_message(ConfigMessage.of(config)))
        assert message.HasField("config")
        assert message.config == config
