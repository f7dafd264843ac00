"""An ensemble in cloud storage, without a version folder, whose step changes under polls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.ensembles.ensemble_models import ensemble_config, step
from tests.contract.lifecycle.changing_models import WIDTH, factor_of
from tests.contract.repository.cloud_models import CloudRepository, cloud_server
from tests.contract.repository.s3_emulator import S3Emulator
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def emulator() -> Iterator[S3Emulator]:
    with S3Emulator() as running:
        yield running


def test_an_ensemble_in_cloud_storage_follows_its_step(emulator: S3Emulator, tmp_path: Path) -> None:
    repository = CloudRepository(emulator, "zoo", "models")
    repository.put_model("a", 2.0)
    repository.put_model("b", 3.0)
    config = ensemble_config(
        [("INPUT0", "TYPE_FP32", [WIDTH])],
        [("OUTPUT0", "TYPE_FP32", [WIDTH])],
        [step("a", {"INPUT0": "INPUT0"}, {"OUTPUT0": "x"}), step("b", {"INPUT0": "x"}, {"OUTPUT0": "OUTPUT0"})],
    )
    repository.put("product/config.pbtxt", config.encode())
    options = ("--model-control-mode=poll", "--repository-poll-secs=1")
    with cloud_server(tmp_path, "log", repository.uri(), *options) as server:
        assert factor_of(server, "product") == 6
        repository.put_version("b", 5.0)
        until(lambda: factor_of(server, "product") == 10)
