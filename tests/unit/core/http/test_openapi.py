"""What the OpenAPI documents say about routes and callers."""

from __future__ import annotations

from trident.core.frontend.access import parse_restricted
from trident.core.http.front_end import HttpOptions
from trident.core.http.openapi import OPERATIONS, openapi_document
from trident.core.http.routes import ROUTES

DESCRIBED = [(route, OPERATIONS[route.name]) for route in ROUTES]


def test_every_route_is_described_and_nothing_else() -> None:
    document = openapi_document("triton", "1", DESCRIBED)
    assert OPERATIONS.keys() == {route.name for route in ROUTES}
    rules = sum(len(route.rules) for route in ROUTES)
    assert len(document["paths"]) == rules
    operations = [
        operation
        for item in document["paths"].values()
        for method, operation in item.items()
        if method in ("get", "post")
    ]
    assert len(operations) == sum(len(route.rules) * len(route.methods) for route in ROUTES)
    assert len({each["operationId"] for each in operations}) == len(operations)


def test_a_route_says_what_its_callers_must_show() -> None:
    options = HttpOptions(restricted=parse_restricted(["inference,metadata:x-key=secret"]))
    document = openapi_document("triton", "1", DESCRIBED, options=options)
    assert document["components"]["securitySchemes"] == {
        "header-x-key": {"type": "apiKey", "in": "header", "name": "x-key"}
    }
    assert document["paths"]["/v2"]["get"]["security"] == [{"header-x-key": []}]
    assert "security" not in document["paths"]["/v2/health/live"]["get"]
    assert "secret" not in str(document)
