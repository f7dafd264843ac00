"""The list of models that the container returns, all pages of it.

Source: docs/spec/sagemaker.md section A5.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import orjson

from app.emulators.common.container_client import ContainerClient, ContainerFault

_PAGES_AT_MOST = 1000
_OK = 200


def read_model_list(client: ContainerClient, within_s: float) -> dict[str, str]:
    """The urls of the models by name. Raises ContainerFault for an answer that is not such a list."""
    found: dict[str, str] = {}
    token = ""
    for _ in range(_PAGES_AT_MOST):
        query = f"?next_page_token={quote(token, safe='')}" if token else ""
        answer = client.ask("GET", f"/models{query}", within_s=within_s)
        if answer.status != _OK:
            raise ContainerFault(f"answered {answer.status}")
        page, token = _page(answer.body)
        found |= page
        if not token:
            return found
    raise ContainerFault(f"has more than {_PAGES_AT_MOST} pages of models, or sends one over and over")


def _page(body: bytes) -> tuple[dict[str, str], str]:
    try:
        document: Any = orjson.loads(body)
        models = {model["modelName"]: model["modelUrl"] for model in document["models"]}
        token = document.get("nextPageToken") or ""
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise ContainerFault("answered with something that is not a list of models") from None
    if not all(isinstance(text, str) for text in (*models, *models.values(), token)):
        raise ContainerFault("answered with something that is not a list of models")
    return models, token
