from __future__ import annotations

import pytest

from trident.adapters.common.options import BadOption, BadValue
from trident.app.settings.groups import resource_limit
from trident.app.settings.reading import read_settings
from trident.core.scheduling.resource_limit import ResourceLimit

REPOSITORY = "--model-repository=/models"
ON = "--rate-limit=execution_count"
R, S = "--rate-limit-resource=R:4", "--rate-limit-resource=S:1:0"


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ([], None),
        (["--rate-limit=off", R], None),
        ([R], None),
        ([ON], ()),
        ([ON, R, S], (ResourceLimit("R", 4), ResourceLimit("S", 1, 0))),
    ],
)
def test_the_limits_of_resources(options: list[str], limits: tuple[ResourceLimit, ...] | None) -> None:
    assert read_settings([REPOSITORY, *options], {}).resource_limits == limits


@pytest.mark.parametrize("text", ["R", "R:", ":4", "R:4:", "R:4:0:1", "R:x", "R:-1", "R:4:-2", "R:99999999999"])
def test_a_limit_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        resource_limit(text)
    with pytest.raises(BadOption, match="--rate-limit-resource"):
        read_settings([REPOSITORY, f"--rate-limit-resource={text}"], {})


def test_another_mode_is_refused() -> None:
    with pytest.raises(BadOption, match="'on' is not one of execution_count, off"):
        read_settings([REPOSITORY, "--rate-limit=on"], {})
