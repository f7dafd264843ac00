from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc.service_pb2 import (
    RepositoryIndexRequest,
    RepositoryIndexResponse,
    RepositoryModelLoadRequest,
    RepositoryModelUnloadRequest,
)

from trident.core.errors import InvalidRequest, Unsupported
from trident.core.grpc.admin_messages import (
    LoadCall,
    UnloadCall,
    index_message,
    read_index_call,
    read_load_call,
    read_unload_call,
)
from trident.core.lifecycle.state import IndexEntry, ModelState


def load_call(**fields: Any) -> LoadCall:
    return read_load_call(RepositoryModelLoadRequest(**fields).SerializeToString())


def test_the_index_of_all_or_of_the_ready_models() -> None:
    assert read_index_call(RepositoryIndexRequest(ready=True).SerializeToString())
    assert not read_index_call(b"")


def test_the_parameters_of_a_load() -> None:
    parameters = {"config": {"string_param": "{}"}, "file:1/model.onnx": {"bytes_param": b"\xff"}}
    call = load_call(model_name="m", parameters=parameters)
    assert call == LoadCall("m", {"config": "{}", "file:1/model.onnx": b"\xff"})
    assert load_call(model_name="m") == LoadCall("m", {})


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("config", {"bytes_param": b"{}"}, "invalid value type for load parameter 'config', expected string_param."),
        ("file:1/a", {"string_param": ""}, "invalid value type for load parameter 'file:1/a', expected bytes_param."),
        ("other", {"bool_param": True}, "unrecognized load parameter 'other'."),
        ("config", {}, "invalid value type for load parameter 'config', expected string_param."),
    ],
)
def test_a_wrong_parameter_of_a_load(key: str, value: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        load_call(model_name="m", parameters={key: value})
    assert str(refusal.value) == text


def test_the_parameters_of_an_unload() -> None:
    def call(**parameters: Any) -> UnloadCall:
        message = RepositoryModelUnloadRequest(model_name="m", parameters=parameters)
        return read_unload_call(message.SerializeToString())

    assert call() == call(other={"int64_param": 1}) == UnloadCall("m", False)
    assert call(unload_dependents={"bool_param": True}) == UnloadCall("m", True)
    with pytest.raises(InvalidRequest, match="invalid value type for 'unload_dependents' parameter, expected bool_p"):
        call(unload_dependents={"string_param": "true"})


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (RepositoryIndexRequest(repository_name="r"), read_index_call),
        (RepositoryModelLoadRequest(repository_name="r"), read_load_call),
        (RepositoryModelUnloadRequest(repository_name="r"), read_unload_call),
    ],
)
def test_repositories_have_no_names(message: Any, read: Any) -> None:
    with pytest.raises(Unsupported, match="'repository_name' specification is not supported"):
        read(message.SerializeToString())


def test_the_index() -> None:
    entries = [
        IndexEntry(name="a", version=1, state=ModelState.READY),
        IndexEntry(name="b", version=2, state=ModelState.UNAVAILABLE, reason="it broke"),
        IndexEntry(name="c"),
    ]
    models = RepositoryIndexResponse.FromString(index_message(entries)).models
    assert [(m.name, m.version, m.state, m.reason) for m in models] == [
        ("a", "1", "READY", ""),
        ("b", "2", "UNAVAILABLE", "it broke"),
        ("c", "", "", ""),
    ]
