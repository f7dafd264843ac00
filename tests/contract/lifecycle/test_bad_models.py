"""Models that cannot be loaded: each has its reason in the index, and the other models serve.

Source: docs/spec/repository.md sections 1.2, 1.4 and 1.6; docs/spec/model-config.md sections 2.2, 2.5 and 2.8.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import onnx
import pytest

from tests.contract.lifecycle.changing_models import (
    INDEX,
    JSON,
    add_scaled,
    factor_in,
    index,
    load,
    ones_body,
    scaled,
    state,
)
from tests.contract.servers.probe_site import Client
from tests.contract.servers.processes import memory_bound
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import assert_still_serves, link_models, raw_post
from tests.waiting import until

pytestmark = pytest.mark.slow

GOOD = scaled(2.0).SerializeToString()
ONNX = "backend: 'onnxruntime'"
NO_BACKEND = "Could not determine backend for model"
NO_VERSION = "at least one version must be available under the version policy of model"


@dataclass(frozen=True)
class Bad:
    """A model that cannot be loaded: how it is made, the status of a load request, and a part of its reason."""

    name: str
    make: Callable[[Path], object]
    status: int
    reason: str


def graph(content: bytes, config: str | bytes = "") -> Callable[[Path], None]:
    """A function that makes version 1 of these bytes."""

    def make(model: Path) -> None:
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.onnx").write_bytes(content)
        if config:
            (model / "config.pbtxt").write_bytes(config.encode() if isinstance(config, str) else config)

    return make


def config(text: str | bytes) -> Callable[[Path], None]:
    return graph(GOOD, text)


def folders(*names: str, text: str = "") -> Callable[[Path], None]:
    def make(model: Path) -> None:
        model.mkdir()
        for name in names:
            (model / name).mkdir(parents=True)
        if text:
            (model / "config.pbtxt").write_text(text)

    return make


def both(first: Callable[[Path], object], second: Callable[[Path], object]) -> Callable[[Path], None]:
    def make(model: Path) -> None:
        first(model)
        second(model)

    return make


def large_config(model: Path) -> None:
    config(" ")(model)
    os.truncate(model / "config.pbtxt", 50 << 20)


def dangling(path: str) -> Callable[[Path], None]:
    return lambda model: (model / path).symlink_to("nowhere")


def external(location: str) -> bytes:
    """A model whose weights are in another file."""
    model = scaled(2.0)
    (weights,) = model.graph.initializer
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    weights.external_data.add(key="length", value="4")
    return model.SerializeToString()


BAD = [
    Bad("garbage", graph(b"garbage" * 100), 400, "Protobuf parsing failed"),
    Bad("truncated", graph(GOOD[: len(GOOD) // 2]), 400, "Internal: "),
    Bad("empty_graph", graph(b""), 400, "Internal: "),
    Bad("other_format", graph(b"PK\x03\x04" + bytes(1000)), 400, "Internal: "),
    Bad("no_versions", folders(text=ONNX), 400, NO_VERSION),
    Bad("nothing", folders(), 500, NO_BACKEND),
    Bad("empty_version", folders("1"), 500, NO_BACKEND),
    Bad("empty_version_of_onnx", folders("1", text=ONNX), 400, "model.onnx"),
    Bad("of_another_name", config("name: 'simple'"), 500, "directory name must equal model name"),
    Bad("binary_config", config(bytes(range(256))), 500, "config.pbtxt"),
    Bad("zero_bytes_config", config(bytes(64)), 500, "config.pbtxt"),
    Bad("long_number", config("max_batch_size: " + "9" * 5000), 500, "config.pbtxt"),
    Bad("open_braces", config("dynamic_batching {" * 5000), 500, "config.pbtxt"),
    Bad("wrong_type", config("input: 7"), 500, "config.pbtxt"),
    Bad("large_config", large_config, 500, "52428800 bytes"),
    Bad("config_folder", both(graph(GOOD), lambda model: (model / "config.pbtxt").mkdir()), 500, "config.pbtxt"),
    Bad("config_link", both(graph(GOOD), dangling("config.pbtxt")), 500, "config.pbtxt"),
    Bad("config_pipe", both(graph(GOOD), lambda model: os.mkfifo(model / "config.pbtxt")), 500, "config.pbtxt"),
    Bad("graph_folder", folders("1/model.onnx", text=ONNX), 400, "model.onnx"),
    Bad("graph_link", both(folders("1", text=ONNX), dangling("1/model.onnx")), 400, "model.onnx"),
    Bad("graph_loop", both(folders("1"), lambda m: (m / "1/model.onnx").symlink_to("model.onnx")), 400, "model.onnx"),
    Bad("version_file", both(folders(text=ONNX), lambda model: (model / "1").touch()), 400, NO_VERSION),
    Bad("weights_missing", graph(external("weights.bin")), 400, "weights.bin"),
    Bad("weights_outside", graph(external("../../simple/1/model.onnx")), 400, "Internal: "),
]
IDS = [bad.name for bad in BAD]

# Strange names of models that can be served.
GOOD_NAMES = ["with.dots.", "...", "..x", "-dash", "~", "%41%2f", "a'b", "n" * 255]
# Names that no request can have: its target is ASCII, and percent-encoding is not decoded.
FOREIGN_NAMES = ["gr\u00f6\u00dfe", "\u6f22\U0001f600"]
INJECTED = "evil\nE0101 00:00:00.000000 1 forged.py:1] forged"
NOT_TEXT = b"not\xfftext"


@pytest.fixture(scope="module")
def repository(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of bad models, models with strange names, and files that are not models."""
    repository = link_models(tmp_path_factory.mktemp("bad") / "models", "simple")
    for bad in BAD:
        bad.make(repository / bad.name)
    for number, name in enumerate([*GOOD_NAMES, *FOREIGN_NAMES, INJECTED]):
        add_scaled(repository, name, float(number))
    add_scaled(repository, os.fsdecode(NOT_TEXT), 1.0)
    (repository / "a_file").write_text("not a model")
    (repository / "a_dangling_link").symlink_to("nowhere")
    (repository / "a_loop").symlink_to("a_loop")
    os.mkfifo(repository / "a_pipe")
    return repository


@pytest.fixture(scope="module")
def explicit(repository: Path) -> Iterator[ServerProcess]:
    loads = ("--load-model=simple", f"--load-model={INJECTED}")
    options = ("--model-control-mode=explicit", *loads, "--shutdown-grace-secs=0")
    with ServerProcess(repository, repository.with_name("explicit.log"), *options) as server:
        yield server
        assert "unexpected error in the server" not in server.log_text()


def reason(server: ServerProcess, name: str) -> str:
    """The reason in the index for a model of which no version is loaded."""
    entries = index(server, name)
    if not entries or any(entry.get("state") != "UNAVAILABLE" for entry in entries):
        return ""
    return entries[0].get("reason", "")


@pytest.mark.parametrize("bad", BAD, ids=IDS)
def test_load_request_for_a_bad_model_is_refused(explicit: ServerProcess, bad: Bad) -> None:
    with memory_bound(explicit, 25):
        status, text = load(explicit, bad.name)
    assert status == bad.status, text
    assert text.startswith("load failed for model" if status == 400 else f"failed to load '{bad.name}', "), text
    assert bad.reason in reason(explicit, bad.name)
    assert_still_serves(explicit)


@pytest.mark.parametrize("name", ["a_file", "a_dangling_link", "a_loop", "a_pipe", "s" * 300, "simple%00"])
def test_file_that_is_not_a_model_cannot_be_loaded(explicit: ServerProcess, name: str) -> None:
    assert load(explicit, name) == (500, f"failed to load '{unquote(name)}', failed to poll from model repository")
    assert index(explicit, name) == []
    assert_still_serves(explicit)


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_model_with_a_strange_name_serves(explicit: ServerProcess, name: str) -> None:
    with Client(explicit.http_port) as client:
        loaded = client.ask(raw_post(b"", JSON, f"/v2/repository/models/{name}/load"))
        assert (loaded.status, loaded.body) == (200, b"")
        answer = client.ask(raw_post(ones_body(), JSON, f"/v2/models/{name}/infer"))
        assert factor_in(answer.body) == float(GOOD_NAMES.index(name))
        assert index(explicit, name) == [{"version": "1", "state": "READY"}]
        page = explicit.request("GET", "/metrics", port=explicit.metrics_port)[2].decode()
        assert f'nv_inference_request_success{{model="{name}",version="1"}} 1' in page
        assert client.ask(raw_post(b"", JSON, f"/v2/repository/models/{name}/unload")).status == 200
    until(lambda: state(explicit, name) == "UNAVAILABLE", "not unloaded")


@pytest.mark.parametrize("name", [name.encode() for name in FOREIGN_NAMES] + [NOT_TEXT])
def test_name_that_is_not_ascii_is_a_bad_request(explicit: ServerProcess, name: bytes) -> None:
    with Client(explicit.http_port) as client:
        answer = client.ask(raw_post(b"", JSON, "/v2/repository/models/NAME/load").replace(b"NAME", name))
    assert (answer.status, b"the request line is not" in answer.body) == (400, True)
    assert_still_serves(explicit)


def test_model_name_that_is_not_utf_8_is_skipped(explicit: ServerProcess) -> None:
    names = {entry["name"] for entry in explicit.json("POST", INDEX)}
    assert names >= set(FOREIGN_NAMES)
    assert [name for name in names if name.startswith("not")] == ["nothing"]
    until(lambda: "its name is not UTF-8" in explicit.log_text())


def test_name_cannot_forge_a_line_of_the_log(explicit: ServerProcess) -> None:
    until(lambda: "forged.py" in explicit.log_text())
    assert not [line for line in explicit.log_text().splitlines() if line.startswith("E0101")]
