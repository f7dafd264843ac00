"""`trident emulate sagemaker`, called by the real SDK: one model, and many.

Source: docs/spec/sagemaker.md sections A1 to A5.
"""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.changing_files import found_below
from tests.contract.emulators.printed_requests import model_of, run_sagemaker_request
from tests.contract.emulators.sagemaker_emulator import ROW, SageMakerEmulator, call, refusal
from tests.contract.lifecycle.changing_models import WIDTH
from tests.contract.sagemaker.sagemaker_archives import (
    CSV,
    ONES,
    is_scaled_by,
    pack,
    pack_large,
    pack_members,
    write_flat,
    write_nested,
    write_rows,
)
from tests.waiting import until
from trident.app.emulators.sagemaker.archives import name_of
from trident.core.config.spec import OutputSpec
from trident.core.http.payloads.arrays import write_npy
from trident.core.inference.tensors import BY_NAME

pytestmark = pytest.mark.slow

JSON = "application/json"
NPY = "application/x-npy"
# The bound of the container's memory, in which two of the heavy models fit, but not six.
MEMORY_MB = 400
HEAVY_MB = 60


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    return pack(write_rows(folder / "model"), folder / "model.tar.gz")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, rows: Path) -> Iterator[SageMakerEmulator]:
    """An emulator of one model. No test breaks a limit."""
    with SageMakerEmulator(tmp_path_factory.mktemp("one"), rows) as emulator:
        yield emulator
        emulator.end()
        assert emulator.breaches() == []


# --- one model


def test_content_types_are_passed_both_ways(one: SageMakerEmulator) -> None:
    array = np.arange(12, dtype="<f4").reshape(3, WIDTH)
    answer = call(one, bytes(write_npy(array)), ContentType=NPY, Accept=f"image/png, {NPY}")
    assert answer["ContentType"] == NPY
    np.testing.assert_array_equal(np.load(io.BytesIO(answer["Body"])), array)
    answer = call(one, Accept=JSON)
    assert (answer["ContentType"], json.loads(answer["Body"])) == (JSON, {"predictions": [[1, 2, 3, 4]]})


def test_a_printed_request_is_answered(
    one: SageMakerEmulator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of({"INPUT0": ("FP32", WIDTH)}, max_batch_size=8)
    run_sagemaker_request(one, model, monkeypatch)
    assert json.loads(capsys.readouterr().out)["outputs"][0]["data"] == [1] * WIDTH
    with_binary = replace(
        model, outputs={"OUTPUT0": OutputSpec(name="OUTPUT0", datatype=BY_NAME["BF16"], dims=(WIDTH,))}
    )
    run_sagemaker_request(one, with_binary, monkeypatch)
    assert r"\x00\x00\x80?" * WIDTH in capsys.readouterr().out


def test_the_callers_id_and_attributes_reach_the_model(one: SageMakerEmulator) -> None:
    item = {"name": "INPUT0", "datatype": "FP32", "shape": [1, WIDTH], "data": [1, 2, 3, 4]}
    body = json.dumps({"inputs": [item]}).encode()
    given = {"InferenceId": "the caller's own", "CustomAttributes": "a=1,b=two, and c"}
    answer = call(one, body, ContentType=JSON, Accept=JSON, **given)
    assert json.loads(answer["Body"])["id"] == "the caller's own"
    assert "CustomAttributes" not in answer


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (b"1,2,three,4\n", {}, 400, "row 1, column 3"),
        (ROW, {"Accept": "image/png"}, 406, "available are"),
    ],
)
def test_refusal_of_the_container_is_a_model_error(
    one: SageMakerEmulator, body: bytes, headers: dict[str, str], status: int, text: str
) -> None:
    found = refusal(one, "ModelError", body, **headers)
    assert (found["status"], found["OriginalStatusCode"]) == (424, status)
    assert text in json.loads(found["OriginalMessage"])["error"]
    assert f"Received client error ({status}) from primary with message" in found["text"]


def test_response_stream_carries_a_whole_answer(one: SageMakerEmulator) -> None:
    answer = one.client.invoke_endpoint_with_response_stream(
        EndpointName="any", ContentType=CSV, Accept=CSV, Body=ROW * 1000
    )
    with contextlib.closing(answer["Body"]) as events:
        content = b"".join(event["PayloadPart"]["Bytes"] for event in events)
    assert answer["ContentType"] == CSV
    assert content == b"1.0,2.0,3.0,4.0\n" * 1000


# --- many models


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SageMakerEmulator]:
    """An emulator of a folder of archives, some of them broken. A model multiplies by its own factor."""
    folder = tmp_path_factory.mktemp("many")
    archives = folder / "archives"
    (archives / "deep" / "er").mkdir(parents=True)
    for factor, key in enumerate(("once.tar.gz", "a.tar.gz", "b.tar.gz", "deep/er/c.tar.gz"), 2):
        pack(write_flat(folder / str(factor), factor), archives / key)
    pack(write_nested(folder / "nested", 9), archives / "nested.tar.gz")
    (write_flat(folder / "broken", 1) / "1" / "model.onnx").write_bytes(b"no model")
    pack(folder / "broken", archives / "broken.tar.gz")
    pack_members(archives / "traversal.tar.gz", tarfile.TarInfo("1/model.onnx"), tarfile.TarInfo("../../../../escaped"))
    pack(write_flat(folder / "outside", 1), folder / "outside.tar.gz")
    with SageMakerEmulator(folder / "run", archives, "--multi-model") as emulator:
        yield emulator
        emulator.end()
        assert emulator.breaches() == []
        assert not list(folder.rglob("escaped"))


def loads(emulator: SageMakerEmulator, key: str) -> int:
    """The loads of an archive's model by the container, as far as its log has them."""
    return emulator.text().count(f"model '{name_of(key)}' was loaded from")


def loads_of_asked(emulator: SageMakerEmulator, key: str) -> int:
    """The loads of a model that has answered: the line about it may come later."""
    return until(lambda: loads(emulator, key))


def ask(emulator: SageMakerEmulator, key: str, factor: int) -> None:
    """The model of `key` must answer with its factor."""
    answer = call(emulator, ONES, TargetModel=key)
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    assert is_scaled_by(answer["Body"], factor)


def test_flat_and_nested_archives_serve_side_by_side(many: SageMakerEmulator) -> None:
    factors = {"a.tar.gz": 3, "b.tar.gz": 4, "deep/er/c.tar.gz": 5, "nested.tar.gz": 9}
    for _ in range(2):
        for key, factor in factors.items():
            ask(many, key, factor)
    assert [loads_of_asked(many, key) for key in factors] == [1] * len(factors)


def test_model_that_cannot_be_loaded_is_a_model_error_each_time(many: SageMakerEmulator) -> None:
    for _ in range(2):
        found = refusal(many, "ModelError", ONES, TargetModel="broken.tar.gz")
        assert (found["status"], found["OriginalStatusCode"]) == (424, 400)
        assert "error" in json.loads(found["OriginalMessage"])
    assert not found_below(many.temporary, name_of("broken.tar.gz"))


def evicted(emulator: SageMakerEmulator) -> list[str]:
    """The models that the container has unloaded, in order."""
    return [line.split("'")[1] for line in emulator.text().splitlines() if "successfully unloaded '" in line]


def test_full_memory_evicts_the_least_recently_used_model(tmp_path: Path) -> None:
    archives = tmp_path / "archives"
    archives.mkdir()

    def put(key: str, factor: int) -> None:
        pack(write_flat(tmp_path / key.partition(".")[0], factor, HEAVY_MB), archives / key)

    first, second, *others = [f"{number}.tar.gz" for number in range(6)]
    put(first, 1)
    put(second, 2)
    # As large as the bound: no eviction makes room for it.
    pack_large(write_flat(tmp_path / "never", 1), archives / "never.tar.gz", MEMORY_MB)
    memory = f"--env=TRIDENT_SAGEMAKER_MEMORY_LIMIT_MB={MEMORY_MB}"
    with SageMakerEmulator(tmp_path / "run", archives, "--multi-model", memory) as emulator:
        ask(emulator, first, 1)
        ask(emulator, second, 2)
        assert evicted(emulator) == []
        for factor, key in enumerate(others, 3):
            ask(emulator, first, 1)  # so the second is always the least recently used
            put(key, factor)
            ask(emulator, key, factor)
            if evicted(emulator):
                break
        assert evicted(emulator)[0] == name_of(second)
        assert not found_below(emulator.temporary, name_of(second))
        assert (loads_of_asked(emulator, first), loads_of_asked(emulator, second)) == (1, 1)
        ask(emulator, second, 2)
        until(lambda: loads(emulator, second) == 2)
        found = refusal(emulator, "ModelError", ONES, TargetModel="never.tar.gz")
        assert found["OriginalStatusCode"] == 507
        assert "MiB" in found["OriginalMessage"]
        ask(emulator, first, 1)
        unloaded = len(evicted(emulator))
        emulator.end()
        assert f"{unloaded} models evicted" in emulator.text()
        assert emulator.breaches() == []
