from __future__ import annotations

import pytest

from adapters.sagemaker.response_type import ResponseTypes, other_than_v2
from adapters.sagemaker.settings import SageMakerSettings
from core.errors import ConfigInvalid
from core.http.payloads.formats import CSV, JSON, JSONLINES, NPY, Decode, NotAcceptable


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
@pytest.mark.parametrize("decode", [JSON.decode, CSV.decode])
def test_the_best_of_what_is_accepted(accept: str | None, chosen: str, decode: Decode) -> None:
    assert ResponseTypes(SageMakerSettings()).of(accept, decode) == chosen


def test_nothing_that_is_accepted() -> None:
    with pytest.raises(NotAcceptable, match="available are: application/json, text/csv, "):
        ResponseTypes(SageMakerSettings()).of("image/png", CSV.decode)


def test_the_default_is_a_setting() -> None:
    types = ResponseTypes(SageMakerSettings(default_accept="text/csv"))
    assert types.of(None, JSON.decode) == types.of("*/*", NPY.decode) == "text/csv"
    assert types.of("application/json", JSON.decode) == "application/json"


@pytest.mark.parametrize("default", ["image/png", "csv"])
def test_a_default_that_is_none_stops_the_start(default: str) -> None:
    with pytest.raises(ConfigInvalid, match="SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT"):
        ResponseTypes(SageMakerSettings(default_accept=default))


def test_batch_jobs_get_lines_for_lines() -> None:
    types = ResponseTypes(SageMakerSettings(batch=True))
    assert types.of(None, CSV.decode) == types.of("*/*", CSV.decode) == "text/csv"
    assert types.of(None, JSONLINES.decode) == "application/jsonlines"
    assert types.of(None, JSON.decode) == "application/json"
    assert types.of("application/json", CSV.decode) == "application/json"
    chosen = SageMakerSettings(batch=True, sources={"default_accept": "environment"})
    assert ResponseTypes(chosen).of(None, CSV.decode) == "application/json"


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
def test_what_a_v2_request_is_answered_with_if_not_with_v2(accept: str, chosen: str | None) -> None:
    assert other_than_v2(accept) == chosen
