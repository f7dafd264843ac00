from __future__ import annotations

import pytest

from trident.app.emulators.vertex.limits import Deployment, EndpointType, GoogleError
from trident.app.emulators.vertex.operation import Operation, Verb, read_operation

DEPLOYMENT = Deployment(endpoint_id="12", deployed_model_id="34")
INVOKED = Deployment(endpoint_id="12", deployed_model_id="34", is_invoked=True)
ENDPOINT = "/v1/projects/p/locations/l/endpoints/12"


@pytest.mark.parametrize(
    ("target", "operation"),
    [
        (f"{ENDPOINT}:predict", Operation(Verb.PREDICT)),
        (f"{ENDPOINT}:explain", Operation(Verb.EXPLAIN)),
        (f"{ENDPOINT}:rawPredict?x=1", Operation(Verb.RAW_PREDICT)),
        (f"{ENDPOINT}:streamRawPredict", Operation(Verb.STREAM_RAW_PREDICT)),
        (
            f"{ENDPOINT}:rawPredict?%24alt=json%3Benum-encoding%3Dint",
            Operation(Verb.RAW_PREDICT, from_sdk=True),
        ),
        (ENDPOINT.replace("/v1/", "/v1beta1/") + ":predict", Operation(Verb.PREDICT)),
    ],
)
def test_calls_are_recognized_by_their_paths(target: str, operation: Operation) -> None:
    assert read_operation("POST", target, DEPLOYMENT) == operation


def test_a_get_asks_for_the_endpoint_resource() -> None:
    assert read_operation("GET", f"{ENDPOINT}?%24alt=json", DEPLOYMENT) == Operation(Verb.GET)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("of", ["", "/deployedModels/34"])
def test_an_invocation_gives_a_path_of_the_container(method: str, of: str) -> None:
    found = read_operation(method, f"{ENDPOINT}{of}/invoke/foo/b%20r:x?a=1&b", INVOKED)
    assert found == Operation(Verb.INVOKE, "/foo/b%20r:x?a=1&b")


@pytest.mark.parametrize(
    ("method", "target", "deployment", "code", "text"),
    [
        ("POST", "/", DEPLOYMENT, 404, "not a call of the emulator"),
        ("POST", f"{ENDPOINT}:fetch", DEPLOYMENT, 404, "not a call of the emulator"),
        ("POST", ENDPOINT, DEPLOYMENT, 404, "not a call of the emulator"),
        ("POST", f"{ENDPOINT}:predict/x", DEPLOYMENT, 404, "not a call of the emulator"),
        ("POST", f"{ENDPOINT}:pr\xe4dict", DEPLOYMENT, 404, "not a call of the emulator"),
        ("POST", ENDPOINT.replace("12", "13") + ":predict", DEPLOYMENT, 404, "is not found"),
        ("POST", f"{ENDPOINT}/deployedModels/35/invoke/a", INVOKED, 404, "is not found"),
        ("GET", f"{ENDPOINT}:predict", DEPLOYMENT, 405, "called with POST"),
        ("POST", f"{ENDPOINT}:directPredict", DEPLOYMENT, 400, "gRPC"),
        ("POST", f"{ENDPOINT}/invoke/a", DEPLOYMENT, 400, "needs a model with an invoke route prefix"),
        ("POST", f"{ENDPOINT}:predict", INVOKED, 400, "is not available for a model with an invoke route prefix"),
        ("POST", f"{ENDPOINT}:rawPredict", INVOKED, 400, "is not available for a model with an invoke route prefix"),
        ("GET", f"{ENDPOINT}/invoke/", INVOKED, 404, "not a call of the emulator"),
        ("GET", f"{ENDPOINT}/invoke", INVOKED, 404, "not a call of the emulator"),
    ],
)
def test_unsupported_calls_are_refused(method: str, target: str, deployment: Deployment, code: int, text: str) -> None:
    with pytest.raises(GoogleError, match=text) as refusal:
        read_operation(method, target, deployment)
    assert refusal.value.code == code


def test_a_shared_endpoint_refuses_streams() -> None:
    shared = Deployment(endpoint_id="12", endpoint_type=EndpointType.SHARED)
    with pytest.raises(GoogleError, match="needs a dedicated endpoint"):
        read_operation("POST", f"{ENDPOINT}:streamRawPredict", shared)
