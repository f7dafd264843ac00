from __future__ import annotations

import threading
from typing import Any

import gevent

from tests.unit.core.waiting.hub_thread import LIMIT_S, run_on_hub, until
from trident.core.frontend.gevent_bridge import HubResponses
from trident.core.inference.response import InferenceResponse


def response(number: int) -> InferenceResponse:
    return InferenceResponse("simple", number, [])


def test_responses_of_another_thread_are_delivered_on_the_hub_in_their_order() -> None:
    def test(hub: Any) -> None:
        seen: list[tuple[int, int]] = []
        responses = HubResponses(hub)
        callback = responses.callback(lambda each: seen.append((each.model_version, threading.get_ident())))
        thread = threading.Thread(target=lambda: [callback(response(number)) for number in range(100)])
        thread.start()
        thread.join(LIMIT_S)
        assert seen == []
        until(lambda: len(seen) == 100)
        assert seen == [(number, threading.get_ident()) for number in range(100)]
        responses.close()

    run_on_hub(test)


def test_a_response_of_the_hubs_own_thread_is_delivered_at_once() -> None:
    def test(hub: Any) -> None:
        seen: list[int] = []
        responses = HubResponses(hub)
        responses.callback(lambda each: seen.append(each.model_version))(response(7))
        assert seen == [7]
        responses.close()

    run_on_hub(test)


def test_a_response_of_the_hubs_own_thread_does_not_overtake_those_of_others() -> None:
    def test(hub: Any) -> None:
        seen: list[int] = []
        responses = HubResponses(hub)
        callback = responses.callback(lambda each: seen.append(each.model_version))
        thread = threading.Thread(target=callback, args=(response(1),))
        thread.start()
        thread.join(LIMIT_S)
        callback(response(2))
        until(lambda: len(seen) == 2)
        assert seen == [1, 2]
        responses.close()

    run_on_hub(test)


def test_those_that_arrive_during_the_delivery_come_after_io() -> None:
    def test(hub: Any) -> None:
        seen: list[int] = []
        responses = HubResponses(hub)

        def again(each: InferenceResponse) -> None:
            seen.append(each.model_version)
            if each.model_version < 3:
                thread = threading.Thread(target=callback, args=(response(each.model_version + 1),))
                thread.start()
                thread.join(LIMIT_S)

        callback = responses.callback(again)
        thread = threading.Thread(target=callback, args=(response(1),))
        thread.start()
        thread.join(LIMIT_S)
        until(lambda: len(seen) == 3)
        responses.close()
        thread = threading.Thread(target=callback, args=(response(4),))
        thread.start()
        thread.join(LIMIT_S)
        gevent.sleep(0)
        assert seen == [1, 2, 3]

    run_on_hub(test)
