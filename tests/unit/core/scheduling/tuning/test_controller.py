from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.pending_requests import pending_request
from trident.core.scheduling.latency_target import BatchController, BatchSetting, Window

MS = 1_000_000
WINDOW_NS = 500 * MS


def window_of(sizes: Sequence[int], *, fixed_ms: float, item_ms: float, latency_ms: float = 0) -> Window:
    """Half a second in which executions of these `sizes` ended, spread evenly."""
    window = Window(0)
    for index, size in enumerate(sizes, 1):
        end_ns = WINDOW_NS * index // len(sizes)
        duration_ns = int((fixed_ms + item_ms * size) * MS)
        requests = [pending_request(enqueue_ns=end_ns - int(latency_ms * MS) or end_ns - duration_ns)] * size
        window.note(requests, end_ns - duration_ns, end_ns)
    return window


@pytest.fixture
def controller() -> BatchController:
    return BatchController(20 * MS, 64)


def test_nothing_waits_and_nothing_is_cut_before_anything_is_known(controller: BatchController) -> None:
    assert controller.setting == BatchSetting(0, 64)


def test_instances_that_have_time_to_spare_do_not_wait(controller: BatchController) -> None:
    for _ in range(10):
        setting = controller.update(window_of([1, 2] * 20, fixed_ms=4, item_ms=0.1), 1)
    assert setting == BatchSetting(0, 64)


def test_busy_instances_wait_until_batches_are_large_enough(controller: BatchController) -> None:
    for _ in range(10):
        setting = controller.update(window_of([3, 5] * 60, fixed_ms=4, item_ms=0.02), 1)
    # 960 items per second: batches of 6 take the instance for 0.66 of its time, batches of 5 for 0.79.
    assert setting.delay_ns == pytest.approx(5 / 0.96 * MS, rel=0.01)


def test_the_delay_is_what_the_target_leaves(controller: BatchController) -> None:
    controller = BatchController(14 * MS, 64)
    for _ in range(10):
        setting = controller.update(window_of([3, 5] * 60, fixed_ms=4, item_ms=0.02), 1)
    assert setting.delay_ns == pytest.approx((0.8 * 14 - 2 * 4.12) * MS, rel=0.01)


def test_no_delay_helps_if_the_items_alone_take_all_the_time(controller: BatchController) -> None:
    for _ in range(10):
        setting = controller.update(window_of([1, 3] * 200, fixed_ms=0.3, item_ms=1), 1)
    assert setting.delay_ns == 0


def test_a_delay_in_which_nobody_comes_is_given_up_for_longer_and_longer(controller: BatchController) -> None:
    """One client that waits for its answer keeps an instance busy, and would wait for nobody."""
    waits = []
    for _ in range(40):
        setting = controller.setting
        count = int(500 / (4 + setting.delay_ns / MS))
        waits.append(controller.update(window_of([1] * count, fixed_ms=4, item_ms=0), 1).delay_ns > 0)
    assert any(waits[:3])
    assert sum(waits[:20]) > sum(waits[20:])
    assert sum(waits) < 10


def test_the_size_lets_two_executions_fit_into_the_budget(controller: BatchController) -> None:
    setting = controller.update(window_of([1, 3] * 20, fixed_ms=2, item_ms=0.5), 1)
    assert setting.max_size == 12  # half of 0.8 * 20 ms


def test_the_size_is_no_larger_than_it_saves_work() -> None:
    setting = BatchController(1000 * MS, 64).update(window_of([1, 3] * 20, fixed_ms=0.2, item_ms=1), 1)
    assert setting.max_size == 13  # 64 times the fixed cost


def test_the_size_keeps_up_with_the_arrivals_whatever_the_target_says() -> None:
    controller = BatchController(5 * MS, 64)
    # Batches of 10 and 14 of 5 ms and more at 1920 items per second.
    setting = controller.update(window_of([10, 14] * 40, fixed_ms=5, item_ms=0.1, latency_ms=12), 1)
    assert setting.max_size * 1000 / (5 + 0.1 * setting.max_size) > 1920


def test_latencies_over_the_target_shrink_the_budget_which_grows_back(controller: BatchController) -> None:
    calm = window_of([1, 3] * 20, fixed_ms=2, item_ms=0.5, latency_ms=5)
    full = controller.update(calm, 1).max_size
    sizes = [
        controller.update(window_of([1, 3] * 20, fixed_ms=2, item_ms=0.5, latency_ms=17), 1).max_size for _ in range(3)
    ]
    assert full > sizes[0] > sizes[1] > sizes[2]
    for _ in range(20):
        setting = controller.update(calm, 1)
    assert setting.max_size == full


def test_a_queue_that_has_grown_is_worked_off_with_the_sizes_that_save_most(controller: BatchController) -> None:
    busy = window_of([8, 12] * 40, fixed_ms=2, item_ms=0.4, latency_ms=200)
    assert controller.update(busy, 1).max_size == 64
    calm = window_of([1, 3] * 20, fixed_ms=2, item_ms=0.4, latency_ms=4)
    sizes = [controller.update(calm, 1).max_size for _ in range(12)]
    assert sizes[0] == 64
    assert sizes[-1] == 15
