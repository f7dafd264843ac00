"""Checks of the responses to smoke calls. Each returns a text about the response or raises CheckFailed."""

from __future__ import annotations

import json
from typing import Any

from google.cloud.aiplatform_v1 import PredictResponse
from google.protobuf.json_format import ParseError

from deploy.vertex.call import CheckFailed, Reply

_OK = 200
_SHOWN = 300
_HEADER_LENGTH = "inference-header-content-length"
_METRIC = b"nv_inference_request_success"


def check_predictions(reply: Reply, count: int) -> str:
    """Check for one prediction per instance."""
    _check_status(reply)
    try:
        answer = PredictResponse.from_json(reply.body, ignore_unknown_fields=True)
    except (ValueError, ParseError) as error:
        raise CheckFailed(f"the response is not one to predict: {error}") from None
    if len(answer.predictions) != count:
        raise CheckFailed(f"{len(answer.predictions)} predictions for {count} instances")
    return f"{count} predictions by deployed model {answer.deployed_model_id}"


def check_v2(reply: Reply) -> str:
    """Check for a response of the v2 protocol in JSON."""
    _check_status(reply)
    return _outputs_text(_json(reply.body))


def check_binary(reply: Reply) -> str:
    """Check for a response of the v2 protocol with binary outputs of the declared sizes."""
    _check_status(reply)
    length = reply.headers.get(_HEADER_LENGTH, "")
    if not length.isdecimal():
        raise CheckFailed(f"the response has no {_HEADER_LENGTH}, so its outputs are not binary: {_start(reply.body)}")
    head = _json(reply.body[: int(length)])
    described = _outputs_text(head)
    sizes = [each.get("parameters", {}).get("binary_data_size", 0) for each in head["outputs"]]
    if int(length) + sum(sizes) != len(reply.body):
        raise CheckFailed(f"{len(reply.body)} bytes, but the header of {length} bytes declares {sum(sizes)} after it")
    return f"{described}, {sum(sizes)} bytes"


def check_metrics(reply: Reply) -> str:
    """Check for the page of metrics."""
    _check_status(reply)
    if _METRIC not in reply.body:
        raise CheckFailed(f"the page has no {_METRIC.decode()}: {_start(reply.body)}")
    return f"{len(reply.body.splitlines())} lines"


def _check_status(reply: Reply) -> None:
    if reply.status != _OK:
        raise CheckFailed(f"status {reply.status}: {_start(reply.body)}")


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("outputs"), list) or not found["outputs"]:
        raise CheckFailed(f"the response has no outputs: {_start(text)}")
    return found


def _outputs_text(document: dict[str, Any]) -> str:
    described = ", ".join(
        f"{each.get('name')} {each.get('datatype')} {each.get('shape')}" for each in document["outputs"]
    )
    return f"{document.get('model_name')} {document.get('model_version')}: {described}"


def _start(body: bytes) -> str:
    return body[:_SHOWN].decode(errors="replace")
