"""`trident emulate sagemaker`, called by the real SDK: one model, and many.

Source: docs/spec/sagemaker.md sections A1 to A5.
"""

from __future__ import annotations

import io
import json
import signal
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
from tests.contract.repository.cloud_models import KEYS, CloudRepository, assert_serves, cloud_server, fetched, listings
from tests.contract.repository.fake_storage import Drip, FaultProxy
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.repository.s3_emulator import S3Emulator
from tests.contract.sagemaker.sagemaker_archives import (
    ONES,
    is_scaled_by,
    pack,
    pack_members,
    write_flat,
    write_nested,
    write_rows,
)
from tests.waiting import LIMIT_S, until
from trident.core.config.spec import OutputSpec
from trident.core.http.payloads.arrays import write_npy
from trident.core.inference.tensors import BY_NAME
from trident.tools.emulators.sagemaker.archives import name_of

pytestmark = pytest.mark.slow

JSON = "application/json"
NPY = "application/x-npy"


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


def test_printed_call_of_a_model_file_is_answered(
    shipped_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SageMakerEmulator(tmp_path, shipped_models / "simple" / "1" / "model.onnx") as emulator:
        until(lambda: "print(answer" in emulator.text(), emulator.text)
        exec(
            emulator.text()[emulator.text().index("import boto3") :].partition('["Body"].read())')[0]
            + '["Body"].read())'
        )
        assert '"OUTPUT0","datatype":"INT32","shape":[1,16],"data":[2,2' in capsys.readouterr().out


def test_content_types_pass_both_ways(one: SageMakerEmulator) -> None:
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


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [(b"1,2,three,4\n", {}, 400, "row 1, column 3"), (ROW, {"Accept": "image/png"}, 406, "available are")],
)
def test_refusal_of_the_container_is_a_model_error(
    one: SageMakerEmulator, body: bytes, headers: dict[str, str], status: int, text: str
) -> None:
    found = refusal(one, "ModelError", body, **headers)
    assert (found["status"], found["OriginalStatusCode"]) == (424, status)
    assert text in json.loads(found["OriginalMessage"])["error"]
    assert f"Received client error ({status}) from primary with message" in found["text"]


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


# --- model data in S3 and Google Cloud Storage: `moto_server`, `gcp-storage-emulator`


@pytest.fixture(scope="module", params=[S3Emulator])
def storage(request: pytest.FixtureRequest) -> Iterator[S3Emulator | GcsEmulator]:
    with request.param() as running:
        yield running


@pytest.fixture
def proxy(storage: S3Emulator | GcsEmulator) -> Iterator[FaultProxy]:
    with FaultProxy(storage.endpoint) as proxy:
        yield proxy


def emulator_of(
    data: CloudRepository, proxy: FaultProxy, folder: Path, *options: str, path: str = "", ready: bool = True
) -> SageMakerEmulator:
    """An emulator of the model data at `path`, with a cache in `folder`."""
    return SageMakerEmulator(
        folder,
        data.uri(proxy.endpoint) + path,
        f"--model-cache-directory={folder / 'cache'}",
        *options,
        ready=ready,
        variables={
            **KEYS,
            "HOME": str(folder),
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_GCE_CHECK": "true",
            "STORAGE_EMULATOR_HOST": proxy.endpoint,
        },
    )


def archive_of(factor: float, folder: Path) -> bytes:
    return pack(write_flat(folder / str(factor), factor), folder / f"{factor}.tar.gz").read_bytes()


def test_a_prefix_is_the_model_folder_and_shares_the_cache_of_servers(
    storage: S3Emulator | GcsEmulator, proxy: FaultProxy, tmp_path: Path
) -> None:
    data = CloudRepository(storage, "prefix", "models")
    data.put_model("one", 2.0, 3.0)
    for _ in range(2):
        with emulator_of(data, proxy, tmp_path) as emulator:
            assert is_scaled_by(call(emulator, ONES)["Body"], 3)
    with cloud_server(tmp_path, "served", data.uri(proxy.endpoint), STORAGE_EMULATOR_HOST=proxy.endpoint) as server:
        assert_serves(server, "one", 3.0)
    assert set(fetched(proxy.requests).values()) == {1}
    assert len(fetched(proxy.requests)) == 3


@pytest.mark.parametrize("storage", [S3Emulator, GcsEmulator], indirect=True, ids=["s3", "gs"])
def test_an_archive_is_fetched_and_unpacked(
    storage: S3Emulator | GcsEmulator, proxy: FaultProxy, tmp_path: Path
) -> None:
    data = CloudRepository(storage, "archive", "models")
    data.put("model.tar.gz", archive_of(4.0, tmp_path))
    data.put("model.tar.gz.sha256", b"another object with the same beginning")
    for _ in range(2):
        with emulator_of(data, proxy, tmp_path, path="/model.tar.gz") as emulator:
            assert is_scaled_by(call(emulator, ONES)["Body"], 4)
    assert fetched(proxy.requests) == {"model.tar.gz": 1}


def test_archives_of_a_multi_model_endpoint_are_fetched_on_demand(
    storage: S3Emulator | GcsEmulator, proxy: FaultProxy, tmp_path: Path
) -> None:
    data = CloudRepository(storage, "many", "models")
    data.put("a.tar.gz", archive_of(2.0, tmp_path))
    data.put("team/b.tar.gz", archive_of(3.0, tmp_path))
    with emulator_of(data, proxy, tmp_path, "--multi-model") as emulator:
        emulator.wait_for_text("2 archives in ")
        assert not fetched(proxy.requests)
        assert is_scaled_by(call(emulator, ONES, TargetModel="team/b.tar.gz")["Body"], 3)
        assert fetched(proxy.requests) == {"team/b.tar.gz": 1}
        before = listings(proxy.requests)
        call(emulator, ONES, TargetModel="team/b.tar.gz")
        assert listings(proxy.requests) == before
        found = refusal(emulator, "ValidationError", ROW, TargetModel="c.tar.gz")
        assert "there is no archive 'c.tar.gz' in " in found["text"]
        data.put("c.tar.gz", archive_of(5.0, tmp_path))
        assert is_scaled_by(call(emulator, ONES, TargetModel="c.tar.gz")["Body"], 5)
    with emulator_of(data, proxy, tmp_path, "--multi-model") as emulator:
        assert is_scaled_by(call(emulator, ONES, TargetModel="c.tar.gz")["Body"], 5)
    assert fetched(proxy.requests) == {"team/b.tar.gz": 1, "c.tar.gz": 1}


@pytest.mark.parametrize("options", [(), ("--multi-model",)])
def test_a_misspelled_prefix_ends_the_command(
    storage: S3Emulator | GcsEmulator, proxy: FaultProxy, tmp_path: Path, options: tuple[str, ...]
) -> None:
    CloudRepository(storage, "spelling", "zoo/models").put_model("one", 2.0)
    wrong = CloudRepository(storage, "spelling", "zoo/modles")
    with emulator_of(wrong, proxy, tmp_path, *options, ready=False) as emulator:
        emulator.status = 1
        assert emulator.wait() == 1
        shown = wrong.uri(proxy.endpoint).replace("http://", "")
        assert emulator.text() == (
            f"error: there is nothing in {shown}\nhint: check how the bucket and the prefix are spelled\n"
        )


def test_an_interrupt_ends_a_download(storage: S3Emulator | GcsEmulator, proxy: FaultProxy, tmp_path: Path) -> None:
    data = CloudRepository(storage, "slow", "models")
    data.put_model("one", 2.0)
    drip = Drip()
    proxy.inject(drip, where="model.onnx")
    with emulator_of(data, proxy, tmp_path, ready=False) as emulator:
        assert drip.paused.wait(LIMIT_S)
        emulator.process.send_signal(signal.SIGINT)
        drip.release()
        assert emulator.wait() == 0
        assert "the runtime API is at" not in emulator.text()
