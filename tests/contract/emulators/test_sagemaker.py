"""`trident emulate sagemaker` for the real SDK: one model, and many.

Source: docs/spec/sagemaker.md sections A1 to A5.
"""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from botocore.exceptions import ClientError

from app.emulators.sagemaker.model_archives import name_of
from core.http.payloads.arrays.npy import write_npy
from tests.changing_files import found_below
from tests.contract.emulators.sagemaker_emulator import ROW, SageMakerEmulator, call, refusal
from tests.contract.lifecycle.changing_models import WIDTH
from tests.contract.sagemaker.sagemaker_archives import (
    CSV,
    ONES,
    is_scaled_by,
    link,
    pack,
    pack_large,
    pack_members,
    write_flat,
    write_nested,
    write_rows,
)

pytestmark = pytest.mark.slow

JSON = "application/json"
NPY = "application/x-npy"
# Three of these have no room beside each other, and two have.
MEMORY_MB = 400
HEAVY_MB = 60


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    return pack(write_rows(folder / "model"), folder / "model.tar.gz")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, rows: Path) -> Iterator[SageMakerEmulator]:
    """A session in which no limit is broken."""
    with SageMakerEmulator(tmp_path_factory.mktemp("one"), rows) as emulator:
        yield emulator
        emulator.end()
        assert emulator.breaches() == []


# --- what of a call arrives, and what comes back


def test_types_go_there_and_come_back(one: SageMakerEmulator) -> None:
    array = np.arange(12, dtype="<f4").reshape(3, WIDTH)
    answer = call(one, bytes(write_npy(array)), ContentType=NPY, Accept=f"image/png, {NPY}")
    assert answer["ContentType"] == NPY
    np.testing.assert_array_equal(np.load(io.BytesIO(answer["Body"])), array)
    answer = call(one, Accept=JSON)
    assert (answer["ContentType"], json.loads(answer["Body"])) == (JSON, {"predictions": [[1, 2, 3, 4]]})


def test_an_inference_id_is_the_id_of_the_request(one: SageMakerEmulator) -> None:
    item = {"name": "INPUT0", "datatype": "FP32", "shape": [1, WIDTH], "data": [1, 2, 3, 4]}
    body = json.dumps({"inputs": [item]}).encode()
    answer = call(one, body, ContentType=JSON, Accept=JSON, InferenceId="the caller's own")
    assert json.loads(answer["Body"])["id"] == "the caller's own"


def test_custom_attributes_do_no_harm_and_are_returned_only_if_the_model_sets_them(one: SageMakerEmulator) -> None:
    answer = call(one, CustomAttributes="a=1,b=two, and c")
    assert answer["Body"] == b"1.0,2.0,3.0,4.0\n"
    assert "CustomAttributes" not in answer


def test_headers_that_are_not_the_platforms_are_stripped(one: SageMakerEmulator) -> None:
    """The container would refuse the first two, and answer the third in another way."""
    strange = {"Content-Encoding": "gzip", "Inference-Header-Content-Length": "x", "Accept-Encoding": "gzip"}

    def add(params: dict[str, Any], **_: Any) -> None:
        params["headers"] |= strange

    event = "before-call.sagemaker-runtime.InvokeEndpoint"
    one.client.meta.events.register(event, add)
    try:
        answer = call(one)
    finally:
        one.client.meta.events.unregister(event, add)
    assert answer["Body"] == b"1.0,2.0,3.0,4.0\n"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("InferenceId", "i" * 65),
        ("InferenceId", "\u00e4"),
        ("CustomAttributes", "a" * 1025),
        ("ContentType", "t" * 1025),
        ("Accept", "t" * 1025),
        ("TargetVariant", "not/a/name"),
        ("TargetContainerHostname", "h" * 64),
        ("SessionId", "-"),
        ("TargetModel", "other.tar.gz"),
    ],
)
def test_headers_that_the_platform_refuses_never_arrive(one: SageMakerEmulator, header: str, value: str) -> None:
    before = one.text().count("POST /invocations")
    found = refusal(one, "ValidationError", **{header: value})
    assert found["status"] == 400
    assert header.lower() in found["text"].lower().replace("-", "")
    assert one.text().count("POST /invocations") == before


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (b"1,2,three,4\n", {}, 400, "row 1, column 3"),
        (b"", {}, 400, "the body is empty"),
        (ROW, {"ContentType": "image/png"}, 415, "supported are"),
        (ROW, {"Accept": "image/png"}, 406, "available are"),
    ],
)
def test_the_containers_own_refusal_is_a_model_error(
    one: SageMakerEmulator, body: bytes, headers: dict[str, str], status: int, text: str
) -> None:
    found = refusal(one, "ModelError", body, **headers)
    assert (found["status"], found["OriginalStatusCode"]) == (424, status)
    assert text in json.loads(found["OriginalMessage"])["error"]
    assert f"Received client error ({status}) from primary with message" in found["text"]


def test_callers_at_once_get_their_own_answers(one: SageMakerEmulator) -> None:
    bodies = [f"{n},{n},{n},{n}\n".encode() for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: call(one, body)["Body"], bodies))
    assert [answer.split(b".")[0] for answer in answers] == [str(n).encode() for n in range(40)]


def test_an_answer_that_is_whole_streams_as_well(one: SageMakerEmulator) -> None:
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
    """Archives by the factors of their models; what can be wrong with one lies beside them."""
    folder = tmp_path_factory.mktemp("many")
    archives = folder / "archives"
    (archives / "deep" / "er").mkdir(parents=True)
    for factor, key in enumerate(("once.tar.gz", "a.tar.gz", "b.tar.gz", "deep/er/c.tar.gz", "together.tar.gz"), 2):
        pack(write_flat(folder / str(factor), factor), archives / key)
    pack(write_nested(folder / "nested", 9), archives / "nested.tar.gz")
    (write_flat(folder / "broken", 1) / "1" / "model.onnx").write_bytes(b"no model")
    pack(folder / "broken", archives / "broken.tar.gz")
    (archives / "text.tar.gz").write_text("no archive")
    pack_members(archives / "traversal.tar.gz", tarfile.TarInfo("1/model.onnx"), tarfile.TarInfo("../../../../escaped"))
    pack_members(archives / "link.tar.gz", link("1", "/etc"))
    pack(write_flat(folder / "outside", 1), folder / "outside.tar.gz")
    with SageMakerEmulator(folder / "run", archives, "--multi-model") as emulator:
        yield emulator
        emulator.end()
        assert emulator.breaches() == []
        assert not list(folder.rglob("escaped"))


def loads(emulator: SageMakerEmulator, key: str) -> int:
    """How often the container has loaded the model of an archive."""
    return emulator.text().count(f"model '{name_of(key)}' was loaded from")


def ask(emulator: SageMakerEmulator, key: str, factor: int) -> None:
    """The model of `key` must answer as it does."""
    answer = call(emulator, ONES, TargetModel=key)
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    assert is_scaled_by(answer["Body"], factor)


def test_a_model_is_loaded_when_it_is_first_asked_for(many: SageMakerEmulator) -> None:
    assert loads(many, "once.tar.gz") == 0
    for _ in range(3):
        ask(many, "once.tar.gz", 2)
    assert loads(many, "once.tar.gz") == 1


def test_models_stand_side_by_side_whatever_their_folders_are(many: SageMakerEmulator) -> None:
    factors = {"a.tar.gz": 3, "b.tar.gz": 4, "deep/er/c.tar.gz": 5, "nested.tar.gz": 9}
    for _ in range(2):
        for key, factor in factors.items():
            ask(many, key, factor)
    assert [loads(many, key) for key in factors] == [1] * len(factors)


def test_callers_of_a_new_model_at_once_load_it_once(many: SageMakerEmulator) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: ask(many, "together.tar.gz", 6), range(6)))
    assert loads(many, "together.tar.gz") == 1


@pytest.mark.parametrize(
    "key", ["nothing.tar.gz", "deep", "../outside.tar.gz", "deep/../a.tar.gz", "/etc/passwd", "a.tar.gz/", "%2e%2e/x"]
)
def test_a_model_that_does_not_exist_is_the_callers_mistake(many: SageMakerEmulator, key: str) -> None:
    found = refusal(many, "ValidationError", ONES, TargetModel=key)
    assert found["status"] == 400
    assert found["text"].startswith("Failed to download model data: there is no archive")
    assert key in found["text"]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("text.tar.gz", "Not a gzipped file"),
        ("traversal.tar.gz", "'../../../../escaped' lies outside of the folder"),
        ("link.tar.gz", "its link '1' leads out of the folder"),
    ],
)
def test_an_archive_that_is_none_is_never_shown_to_the_container(many: SageMakerEmulator, key: str, text: str) -> None:
    found = refusal(many, "ValidationError", ONES, TargetModel=key)
    assert found["text"].startswith("Failed to unpack model data: ")
    assert text in found["text"]
    assert name_of(key) not in many.text()
    assert not found_below(many.temporary, name_of(key))


def test_a_model_that_cannot_be_loaded_is_a_model_error_each_time(many: SageMakerEmulator) -> None:
    for _ in range(2):
        found = refusal(many, "ModelError", ONES, TargetModel="broken.tar.gz")
        assert (found["status"], found["OriginalStatusCode"]) == (424, 400)
        assert "error" in json.loads(found["OriginalMessage"])
    assert not found_below(many.temporary, name_of("broken.tar.gz"))


def test_a_call_without_a_model_says_what_is_missing(many: SageMakerEmulator) -> None:
    assert "X-Amzn-SageMaker-Target-Model" in refusal(many, "ValidationError")["text"]


def test_many_models_do_not_stream(many: SageMakerEmulator) -> None:
    with pytest.raises(ClientError, match="A multi-model endpoint has no response stream"):
        many.client.invoke_endpoint_with_response_stream(EndpointName="any", Body=ONES)


def evicted(emulator: SageMakerEmulator) -> list[str]:
    """Which models the container has unloaded, in order."""
    return [line.split("'")[1] for line in emulator.text().splitlines() if "successfully unloaded '" in line]


def test_want_of_memory_evicts_what_was_used_longest_ago(tmp_path: Path) -> None:
    archives = tmp_path / "archives"
    archives.mkdir()

    def put(key: str, factor: int) -> None:
        pack(write_flat(tmp_path / key.partition(".")[0], factor, HEAVY_MB), archives / key)

    first, second, *others = [f"{number}.tar.gz" for number in range(6)]
    put(first, 1)
    put(second, 2)
    # As large as the bound, whatever else there is: nothing can be evicted that would help.
    pack_large(write_flat(tmp_path / "never", 1), archives / "never.tar.gz", MEMORY_MB)
    memory = f"--env=TRIDENT_SAGEMAKER_MEMORY_LIMIT_MB={MEMORY_MB}"
    with SageMakerEmulator(tmp_path / "run", archives, "--multi-model", memory) as emulator:
        ask(emulator, first, 1)
        ask(emulator, second, 2)
        assert evicted(emulator) == []
        for factor, key in enumerate(others, 3):
            ask(emulator, first, 1)  # so that the second is always the one that was used longest ago
            put(key, factor)
            ask(emulator, key, factor)
            if evicted(emulator):
                break
        assert evicted(emulator)[0] == name_of(second)
        assert not found_below(emulator.temporary, name_of(second))
        assert (loads(emulator, first), loads(emulator, second)) == (1, 1)
        ask(emulator, second, 2)
        assert loads(emulator, second) == 2
        found = refusal(emulator, "ModelError", ONES, TargetModel="never.tar.gz")
        assert found["OriginalStatusCode"] == 507
        assert "MiB" in found["OriginalMessage"]
        ask(emulator, first, 1)
        unloaded = len(evicted(emulator))
        emulator.end()
        assert f"{unloaded} models evicted" in emulator.text()
        assert emulator.breaches() == []
