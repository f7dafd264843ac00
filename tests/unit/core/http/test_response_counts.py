from __future__ import annotations

import json

from prometheus_client import CollectorRegistry, generate_latest

from trident.core.http.counts import TABLE_BYTES, Answer, ResponseCounts, read_counts
from trident.core.http.response_collector import ResponseCollector


def test_answers_are_counted_by_method_route_and_status() -> None:
    counts = ResponseCounts()
    for method, route, status in (("GET", "/v2", 200), ("POST", "/v2", 405), ("GET", "/v2", 200), ("GET", "", 404)):
        counts.add(method, route, status)
    assert dict(counts.items()) == {
        Answer("GET", "/v2", 200): 2,
        Answer("POST", "/v2", 405): 1,
        Answer("GET", "", 404): 1,
    }


def test_a_table_with_counts_is_continued() -> None:
    table = bytearray(TABLE_BYTES)
    ResponseCounts(table).add("GET", "/ping", 200)
    counts = ResponseCounts(table)
    counts.add("GET", "/v2", 200)
    counts.add("GET", "/ping", 200)
    assert dict(read_counts(bytes(table))) == {Answer("GET", "/ping", 200): 2, Answer("GET", "/v2", 200): 1}


def test_an_answer_without_room_is_not_counted() -> None:
    counts = ResponseCounts()
    for number in range(1000):
        counts.add("GET", f"/{number}", 200)
    counts.add("GET", "/" + "x" * 300, 200)
    counts.add("GET", "/0", 200)
    found = dict(counts.items())
    assert len(found) == 512
    assert found[Answer("GET", "/0", 200)] == 2
    assert found[Answer("GET", "/511", 200)] == 1


def test_a_route_that_is_too_long_takes_no_slot() -> None:
    counts = ResponseCounts()
    counts.add("GET", "/" + "é" * 100, 200)
    counts.add("GET", "/v2", 200)
    assert list(counts.items()) == [(Answer("GET", "/v2", 200), 1)]


def test_a_slot_is_complete_when_its_length_is_written() -> None:
    """A reader of another process may see a table at any moment."""
    table = bytearray(TABLE_BYTES)
    key = json.dumps(["GET", "/v2", 200]).encode()
    table[2 : 2 + len(key)] = key
    assert list(read_counts(table)) == []
    table[0] = len(key)
    assert list(read_counts(table)) == [(Answer("GET", "/v2", 200), 0)]


def test_the_registry_shows_the_sums() -> None:
    registry = CollectorRegistry()
    counts = [(Answer("GET", "/v2", 200), 2), (Answer("GET", "", 404), 1), (Answer("GET", "/v2", 200), 40)]
    registry.register(ResponseCollector(lambda: counts))
    lines = generate_latest(registry).decode().splitlines()
    assert lines[1:] == [
        "# TYPE trident_http_responses_total counter",
        'trident_http_responses_total{method="GET",route="",status="404"} 1.0',
        'trident_http_responses_total{method="GET",route="/v2",status="200"} 42.0',
    ]
