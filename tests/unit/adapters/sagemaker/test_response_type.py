from __future__ import annotations

import pytest

from trident.adapters.sagemaker.invocations import ResponseTypes, other_than_v2
from trident.adapters.sagemaker.settings import SageMakerSettings
from trident.core.errors import ConfigInvalid
from trident.core.http.payloads.formats import BodyKind, NotAcceptable


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, "application/json"),
        ("", "application/json"),
        ("*/*", "application/json"),
        ("text/csv", "text/csv"),
        ("image/png, application/x-npy;q=0.5, text/csv;q=0.4", "application/x-npy"),
        ("application/json;q=0, */*", "text/csv"),
    ],
)
@pytest.mark.parametrize("kind", [BodyKind.JSON, BodyKind.CSV])
def test_the_preferred_accepted_type_is_chosen(accept: str | None, chosen: str, kind: BodyKind) -> None:
    assert ResponseTypes(SageMakerSettings()).of(accept, kind) == chosen


def test_an_accept_header_without_a_known_type_is_refused() -> None:
    with pytest.raises(NotAcceptable, match="available are: application/json, text/csv, "):
        ResponseTypes(SageMakerSettings()).of("image/png", BodyKind.CSV)


def test_the_default_type_is_a_setting() -> None:
    types = ResponseTypes(SageMakerSettings(default_accept="text/csv"))
    assert types.of(None, BodyKind.JSON) == types.of("*/*", BodyKind.NPY) == "text/csv"
    assert types.of("application/json", BodyKind.JSON) == "application/json"


@pytest.mark.parametrize("default", ["image/png", "csv"])
def test_an_invalid_default_type_stops_the_start(default: str) -> None:
    with pytest.raises(ConfigInvalid, match="SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT"):
        ResponseTypes(SageMakerSettings(default_accept=default))


def test_batch_jobs_get_lines_for_lines() -> None:
    types = ResponseTypes(SageMakerSettings(batch=True))
    assert types.of(None, BodyKind.CSV) == types.of("*/*", BodyKind.CSV) == "text/csv"
    assert types.of(None, BodyKind.JSONLINES) == "application/jsonlines"
    assert types.of(None, BodyKind.JSON) == "application/json"
    assert types.of("application/json", BodyKind.CSV) == "application/json"
    chosen = SageMakerSettings(batch=True, sources={"default_accept": "environment"})
    assert ResponseTypes(chosen).of(None, BodyKind.CSV) == "application/json"


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("application/json", None),
        ("*/*", None),
        ("application/octet-stream", None),
        ("application/vnd.sagemaker-triton.binary+json;json-header-size=10", None),
        ("image/png", None),
        ("garbage", None),
        ("text/csv;q=0.5, application/json;q=0.4", "text/csv"),
        ("application/x-npy", "application/x-npy"),
    ],
)
def test_a_v2_request_may_prefer_another_type(accept: str, chosen: str | None) -> None:
    assert other_than_v2(accept) == chosen
