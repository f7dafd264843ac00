"""A rollout under load: models are loaded, changed and unloaded while clients send requests on open connections.

No request may fail, and every answer must have the old or the new weights.
Source: docs/spec/repository.md section 1.6; docs/architecture.md section 9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import INDEX, add_scaled, factor_in, factor_of, load, ones_body, unload
from tests.contract.remote.remote_server import Traffic, undisturbed
from tests.contract.servers.server import ServerProcess
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("http_workers")]

SERVED = "served"
POLLING = ("--model-control-mode=poll", "--repository-poll-secs=1")
NOT_EXPLICIT = (503, "explicit model load / unload is not allowed if polling is enabled")


@contextmanager
def under_load(server: ServerProcess, allowed: set[float]) -> Iterator[Traffic]:
    """Clients of `served`, each of whose answers must have one of the `allowed` factors."""
    with undisturbed(
        server,
        6,
        path=f"/v2/models/{SERVED}/infer",
        body=lambda seed: ones_body(),
        is_right=lambda answer, seed: factor_in(answer) in allowed,
    ) as traffic:
        yield traffic


def serves(server: ServerProcess, factor: float) -> Callable[[], bool]:
    return lambda: factor_of(server, SERVED) == factor


def test_models_are_added_and_removed_by_polling_under_load(tmp_path: Path) -> None:
    add_scaled(tmp_path / "models", SERVED, 1.0)
    with (
        ServerProcess(tmp_path / "models", tmp_path / "log", *POLLING, "--shutdown-grace-secs=0") as polling,
        under_load(polling, {1.0}) as traffic,
    ):
        assert load(polling, SERVED) == unload(polling, SERVED) == NOT_EXPLICIT
        for round_ in range(2):
            made = add_scaled(tmp_path / f"round{round_}", "appearing", 4.0 + round_)
            made.rename(polling.repository / "appearing")
            until(lambda: _ready(polling, "appearing"), "the model is not loaded")
            assert factor_of(polling, "appearing") == 4.0 + round_
            (polling.repository / "appearing").rename(tmp_path / f"gone{round_}")
            until(lambda: not _ready(polling, "appearing"), "the model is not unloaded")
            traffic.wait_for_more()


def _ready(server: ServerProcess, name: str) -> bool:
    return name in [entry["name"] for entry in server.json("POST", INDEX, {"ready": True})]


@pytest.mark.parametrize("whole_repository", [False, True], ids=["model", "repository"])
def test_swapped_link_of_a_mounted_volume_is_loaded(tmp_path: Path, whole_repository: bool) -> None:
    """`..data` links to the folder of a generation and is replaced; everything else links through it."""
    mount = tmp_path / "volume"
    for generation in range(3):
        content = mount / f"..generation_{generation}"
        add_scaled(content, SERVED, 1.0 + generation)
    (mount / "..data").symlink_to("..generation_0")
    if whole_repository:
        repository = mount / "..data"
    else:
        repository = tmp_path / "models"
        repository.mkdir()
        (repository / SERVED).symlink_to(mount / "..data" / SERVED)
    allowed = {1.0}
    with (
        ServerProcess(repository, tmp_path / "log", *POLLING, "--shutdown-grace-secs=0") as server,
        under_load(server, allowed) as traffic,
    ):
        for generation in range(1, 3):
            allowed.add(1.0 + generation)
            (mount / "..data_tmp").symlink_to(f"..generation_{generation}")
            (mount / "..data_tmp").replace(mount / "..data")
            until(serves(server, 1.0 + generation), "the new generation does not serve")
            traffic.wait_for_all()
            allowed.remove(float(generation))
            traffic.wait_for_more()
