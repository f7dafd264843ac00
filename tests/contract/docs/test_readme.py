"""The requests of the README and of the page about gRPC, sent to the real server: the answers must be those written."""

from __future__ import annotations

import re

import pytest

from tests.contract.docs.documented_examples import ADDRESS, GRPC_ADDRESS, Example, assert_answers, examples, same
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT

EXAMPLES = [example for page in ("README.md", "docs/grpc.md") for example in examples((ROOT / page).read_text())]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.label)
def test_example_answers_as_written(example: Example, server: ServerProcess) -> None:
    assert_answers(example, server)


def test_the_pages_show_every_kind_of_call() -> None:
    texts = [example.text for example in EXAMPLES]
    assert any("curl" in text and "/infer" in text for text in texts)
    for client in ("tritonclient.http", "tritonclient.grpc as", "tritonclient.grpc.aio", "async_stream_infer"):
        assert any(client in text for text in texts)
    assert any("@deploy/digits/" in text for text in texts)
    assert all(ADDRESS in text or GRPC_ADDRESS in text for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("digit", range(10))
def test_shipped_picture_is_classified_right(digit: int, server: ServerProcess) -> None:
    body = (ROOT / "deploy" / "digits" / f"{digit}.json").read_bytes()
    status, _, answer = server.request("POST", "/v2/models/digits/infer", body)
    assert status == 200, answer
    label = (ROOT / "deploy" / "models" / "digits" / "labels.txt").read_text().split()[digit]
    assert re.search(rb'"data":\["[\d.]+:%d:%s"' % (digit, label.encode()), answer), answer


@pytest.mark.parametrize(
    ("answer", "expected", "equal"),
    [
        ('{"data":[1,2]}', '{"data": [1, 2]}\n', True),
        ('["0.990898:6:six"]', '["0.990897:6:six"]', True),
        ('["0.990898:6:six"]', '["0.990897:5:six"]', False),
        ('["0.990898:6:six"]', '["0.990897:6:sic"]', False),
        ("[1,2]", "[1,2,3]", False),
    ],
)
def test_answers_are_compared_by_value(answer: str, expected: str, equal: bool) -> None:
    assert same(answer, expected) is equal
