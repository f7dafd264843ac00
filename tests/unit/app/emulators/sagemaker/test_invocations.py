"""One call of SageMaker's runtime API: its headers, and the events of a streamed answer."""

from __future__ import annotations

import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel

from trident.app.emulators.container import BreachReport
from trident.app.emulators.sagemaker.invocation import (
    CUSTOM_ATTRIBUTES,
    PREFIX,
    REQUEST_HEADERS,
    passed_back,
    read_invocation,
)


def test_the_streaming_api_has_its_own_names_for_two_headers() -> None:
    given = {"Content-Type": "text/csv", "Accept": "*/*", PREFIX + "Accept": "text/plain"}
    assert read_invocation(given, b"", is_stream=True).headers == {"Content-Type": "text/csv", "Accept": "text/plain"}
    given[PREFIX + "Content-Type"] = "application/json"
    assert read_invocation(given, b"", is_stream=True).headers["Content-Type"] == "application/json"


def test_only_headers_that_the_sdk_knows_reach_the_caller() -> None:
    report = BreachReport()
    answered = [
        ("content-type", "text/csv"),
        ("Server", "gunicorn"),
        (CUSTOM_ATTRIBUTES.lower(), "c=3"),
        (PREFIX + "New-Session-Id", "a-1; Expires=2030-01-02T03:04:05Z"),
        (PREFIX + "Closed-Session-Id", "a-0"),
    ]
    assert passed_back(answered, report) == {
        "Content-Type": "text/csv",
        CUSTOM_ATTRIBUTES: "c=3",
        PREFIX + "New-Session-Id": "a-1; Expires=2030-01-02T03:04:05Z",
        PREFIX + "Closed-Session-Id": "a-0",
    }
    assert report.breaches == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (CUSTOM_ATTRIBUTES, "a" * 1025),
        ("Content-Type", "ä"),
        (PREFIX + "New-Session-Id", "a"),
        (PREFIX + "New-Session-Id", "a; Expires=2030-01-02T03:04:05.000Z"),
        (PREFIX + "Closed-Session-Id", "a b"),
    ],
)
def test_a_malformed_header_of_the_answer_is_a_breach_and_is_removed(name: str, value: str) -> None:
    report = BreachReport()
    assert passed_back([(name, value)], report) == {}
    (breach,) = report.breaches
    assert name in breach


@pytest.mark.parametrize("operation", ["InvokeEndpoint", "InvokeEndpointWithResponseStream"])
def test_headers_are_those_of_the_sdks_model(operation: str) -> None:
    """A header that a newer SDK sends must be added, with its limit."""
    model = ServiceModel(Loader().load_service_model("sagemaker-runtime", "service-2")).operation_model(operation)
    sent = {each.serialization["name"]: each for each in model.input_shape.members.values() if each.serialization}
    sent.pop("EndpointName")
    for name, shape in sent.items():
        plain = name.removeprefix(PREFIX) if name.endswith(("-Accept", "-Content-Type")) else name
        longest = shape.metadata["max"]
        assert REQUEST_HEADERS[plain].fullmatch("a" * longest)
        assert not REQUEST_HEADERS[plain].fullmatch("a" * (longest + 1))
