from __future__ import annotations

import pytest

from tests.unit.core.scheduling.rate_limiter.placed import limit, placed
from trident.core.config.placement import Placement
from trident.core.errors import ConfigInvalid
from trident.core.scheduling.rate_limiter import Resource, check_limits, explicit_limit, needs_of, resource_limits
from trident.core.scheduling.resource_limit import ResourceLimit

ON_0, ON_1, GLOBAL = Resource("r", 0), Resource("r", 1), Resource("r", None)


@pytest.mark.parametrize(
    ("resource", "options", "expected"),
    [
        (ON_0, [], None),
        (ON_0, [ResourceLimit("other", 3)], None),
        (ON_0, [ResourceLimit("R", 3)], 3),
        (ON_1, [ResourceLimit("r", 3)], 3),
        (ON_0, [ResourceLimit("r", 3, 0)], 3),
        (ON_1, [ResourceLimit("r", 3, 0)], 0),
        (ON_0, [ResourceLimit("r", 3, 0), ResourceLimit("r", 5)], 5),
        (ON_1, [ResourceLimit("r", 7, 0), ResourceLimit("r", 5)], 5),
        (GLOBAL, [ResourceLimit("r", 3, 4), ResourceLimit("r", 2)], 3),
    ],
)
def test_explicit_limits(resource: Resource, options: list[ResourceLimit], expected: int | None) -> None:
    assert explicit_limit(resource, options) == expected


def test_implied_limits_are_those_of_the_neediest() -> None:
    options = [ResourceLimit("named", 9)]
    needs = [{ON_0: 2, ON_1: 1}, {ON_0: 4}, {Resource("named", None): 1}]
    assert resource_limits(needs, options) == {ON_0: 4, ON_1: 1, Resource("named", None): 9}
    assert resource_limits(needs[:1], options) == {ON_0: 2, ON_1: 1}


def refusal(placement: Placement, *others: Placement, options: tuple[ResourceLimit, ...] = ()) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        check_limits(placement, "m", [needs_of(other) for other in others], options)
    assert caught.value.hint
    return caught.value.message


def test_an_instance_that_could_never_run_is_refused() -> None:
    text = (
        'Resource count for "R" is limited to 2 which will prevent scheduling of one or more model instances, '
        "the minimum required count is 3"
    )
    needy = placed("m_0", limit(R=3), gpu=1)
    assert refusal(needy, options=(ResourceLimit("r", 2),)) == text
    assert "limited to 0" in refusal(needy, options=(ResourceLimit("r", 9, 0),))
    check_limits(needy, "m", [], (ResourceLimit("r", 3),))
    check_limits(needy, "m", [], ())


def test_a_resource_is_global_or_of_devices_for_all_models() -> None:
    text = 'Resource "R" is present as both global and device-specific resource in the model configuration.'
    here, everywhere = placed("m_0", limit(R=1)), placed("n_0", limit(R=1, everywhere=True))
    assert refusal(here, everywhere) == refusal(everywhere, here) == text
    both = limit(R=1).needs + limit(R=1, everywhere=True).needs
    assert refusal(placed("m_0", type(here.limit)(both))) == text
    check_limits(here, "m", [needs_of(here)], ())
