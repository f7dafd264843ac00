"""The printed requests for the platforms' SDKs, run as they stand against an emulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import requests

from tests.contract.emulators.sagemaker_emulator import SageMakerEmulator
from tests.contract.emulators.vertex_emulator import VertexEmulator, WithoutTls
from trident.core.config.spec import InputSpec, ModelSpec
from trident.core.http.sample_request import Place, make_sample, write_request
from trident.core.inference.tensors import BY_NAME


def model_of(inputs: Mapping[str, tuple[Any, ...]], **more: Any) -> ModelSpec:
    """A model whose `inputs` have a datatype and dimensions."""
    given = {
        name: InputSpec(name=name, datatype=BY_NAME[datatype], dims=dims) for name, (datatype, *dims) in inputs.items()
    }
    rest: dict[str, Any] = {"name": "any", "version": 1, "platform": "", "backend": "", "max_batch_size": 0}
    return ModelSpec(**(rest | more), inputs=given, outputs={})


def run_sagemaker_request(emulator: SageMakerEmulator, model: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": emulator.client.meta.endpoint_url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "SAGEMAKER_ENDPOINT": "any",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    exec(write_request(make_sample(model), "sagemaker", Place(url="")), {})


def run_vertex_request(emulator: VertexEmulator, model: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.sdk_endpoint()  # makes the emulator the SDK's default
    monkeypatch.setenv("VERTEX_ENDPOINT", emulator.endpoint)
    monkeypatch.setattr(requests.sessions, "HTTPAdapter", WithoutTls)
    exec(write_request(make_sample(model), "vertex", Place(url="")), {})
