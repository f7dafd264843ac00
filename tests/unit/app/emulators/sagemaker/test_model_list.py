from __future__ import annotations

import json

import pytest

from tests.unit.app.emulators.scripted_container import LIMIT_S, Answer, Call, ScriptedContainer
from trident.app.emulators.container import ContainerClient, ContainerFault
from trident.app.emulators.sagemaker.endpoint import PlatformLimits, read_model_list


def listed(container: ScriptedContainer) -> dict[str, str]:
    with container:
        return read_model_list(ContainerClient(container.port, PlatformLimits()), LIMIT_S)


def page(names: str, token: str = "") -> Answer:
    document = {"models": [{"modelName": name, "modelUrl": f"/{name}"} for name in names]}
    return Answer(body=json.dumps(document | ({"nextPageToken": token} if token else {})).encode())


def test_all_pages_are_read() -> None:
    pages = {"/models": page("ab", "x&y"), "/models?next_page_token=x%26y": page("c")}
    assert listed(ScriptedContainer(lambda call: pages[call.path])) == {"a": "/a", "b": "/b", "c": "/c"}


def test_an_empty_list_is_valid() -> None:
    assert listed(ScriptedContainer(lambda call: page(""))) == {}


@pytest.mark.slow
def test_endless_pages_are_a_fault() -> None:
    with pytest.raises(ContainerFault, match="over and over"):
        listed(ScriptedContainer(lambda call: page("a", "again")))


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"models": [{}]}', b'{"models": [{"modelName": 1, "modelUrl": "x"}]}', b'{"models": 1}'],
)
def test_a_malformed_list_is_a_fault(body: bytes) -> None:
    with pytest.raises(ContainerFault, match="not a list of models"):
        listed(ScriptedContainer(lambda call: Answer(body=body)))


def test_a_missing_route_is_a_fault() -> None:
    def absent(call: Call) -> Answer:
        return Answer(404)

    with pytest.raises(ContainerFault, match="answered 404"):
        listed(ScriptedContainer(absent))
