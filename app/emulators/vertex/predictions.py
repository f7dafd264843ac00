"""The platform's format of a request and of its answer: instances, and a prediction for each.

Source: docs/spec/vertex.md section A3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from app.emulators.vertex.google_error import invalid

_INSTANCES, _PARAMETERS = "instances", "parameters"
_PREDICT_FIELDS = frozenset({"endpoint", _INSTANCES, _PARAMETERS})
_EXPLAIN_FIELDS = _PREDICT_FIELDS | {"deployedModelId", "explanationSpecOverride"}


class PredictionFault(Exception):
    """The container's answer has no predictions. The text continues the words `the container`."""


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """A request for the predictions of `count` instances; `body` is sent to the container."""

    count: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Predictions:
    """`metadata` is the container's metadata of the whole request, None for none."""

    values: list[Any]
    metadata: Any = None

    def fault(self, count: int) -> str:
        """The reason why these do not answer `count` instances; "" if they do."""
        return "" if len(self.values) == count else f"answered {count} instances with {len(self.values)} predictions"


def read_predict_request(body: bytes, *, is_explain: bool = False) -> PredictRequest:
    """Read the body of a call. Raises GoogleError for a body that the API refuses without the container."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"Invalid JSON payload received. {error}") from None
    if type(document) is not dict:
        raise invalid("Invalid JSON payload received. Unexpected token: the root must be an object")
    for name in document.keys() - (_EXPLAIN_FIELDS if is_explain else _PREDICT_FIELDS):
        raise invalid(f'Invalid JSON payload received. Unknown name "{name[:100]}": Cannot find field.')
    instances = document.get(_INSTANCES)
    if type(instances) is not list or not instances:
        raise invalid("Invalid value at 'instances': there must be a list of at least one instance")
    return predict_request(instances, document.get(_PARAMETERS))


def predict_request(instances: list[Any], parameters: Any = None) -> PredictRequest:
    """The request to the container for these instances."""
    document = {_INSTANCES: instances}
    if parameters is not None:
        document[_PARAMETERS] = parameters
    return PredictRequest(len(instances), orjson.dumps(document))


def read_predictions(body: bytes) -> Predictions:
    """The predictions in the container's answer with status 200. Raises PredictionFault."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise PredictionFault(f"answered 200 with a body that is not JSON: {error}") from None
    if type(document) is not dict or type(document.get("predictions")) is not list:
        raise PredictionFault("answered 200 without a list of 'predictions'")
    return Predictions(document["predictions"], document.get("metadata"))
