"""A container whose /invocations generates: one object, or events.

Source: docs/spec/sagemaker.md sections B1, B3 and B5.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.sagemaker.sagemaker_container import SageMakerContainer
from tests.project import ROOT

pytestmark = pytest.mark.slow

ONES = [1] * 16
BODY = json.dumps({"INPUT0": ONES, "INPUT1": ONES}).encode()


@pytest.fixture(params=["generate", "generate_stream"])
def container(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SageMakerContainer]:
    variables = {
        "SAGEMAKER_TRITON_INFERENCE_TYPE": request.param,
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple",
        "TRIDENT_SAGEMAKER_MODEL_ROOT": str(ROOT / "deploy" / "models"),
    }
    with SageMakerContainer(tmp_path / "log", **variables) as made:
        yield made


def test_invocations_generates(container: SageMakerContainer, request: pytest.FixtureRequest) -> None:
    answer = container.invoke(BODY, Content_Type="application/json", X_Amzn_SageMaker_Inference_Id="caller")
    assert answer.status == 200
    text = answer.body.removeprefix(b"data: ").removesuffix(b"\n\n")
    assert (len(text) < len(answer.body)) == ("generate_stream" in request.node.name)
    members = json.loads(text)
    assert (members["OUTPUT0"], members["OUTPUT1"], members["id"]) == ([2] * 16, [0] * 16, "caller")
    refused = container.invoke(b"{}", Content_Type="application/json")
    assert (refused.status, "expected 2 inputs" in json.loads(refused.body)["error"]) == (400, True)
