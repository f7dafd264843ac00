"""The platform's routes on an engine with scripted responses: statuses, bodies, headers, modes."""

from __future__ import annotations

import gzip
import io
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from tests.unit.adapters.platform_bench import V2, PlatformBench
from trident.adapters.sagemaker.application import SageMakerApplication
from trident.adapters.sagemaker.invocations import ResponseTypes, add_timing, adopt_headers, parameter_headers
from trident.adapters.sagemaker.platform import InferenceType, PingMode, SageMakerSettings
from trident.core.errors import BackendFailed, ConfigInvalid, InvalidRequest, OutOfMemory
from trident.core.http.front_end import HttpOptions
from trident.core.inference.request import InferenceRequest, InferenceTimes, Parameter
from trident.core.lifecycle.state import Phase, ServingPhase

ANSWER = {
    "model_name": "simple",
    "model_version": "3",
    "outputs": [{"name": "OUT", "datatype": "INT32", "shape": [2], "data": [1, 2]}],
}
BINARY = "application/vnd.sagemaker-triton.binary+json"


class Bench(PlatformBench):
    def __init__(self, options: HttpOptions | None = None, **settings: Any) -> None:
        super().__init__(SageMakerApplication, SageMakerSettings(**{"default_model": "simple", **settings}), options)

    def invoke(self, data: bytes = V2, content_type: str | None = "application/json", **headers: str) -> Any:
        return self.post("/invocations", data, content_type, **headers)


# --- routes


@pytest.mark.parametrize("mode", PingMode)
def test_ping_answers_503_with_the_progress_and_names_models_whose_reload_failed(mode: PingMode) -> None:
    bench = Bench(ping_mode=mode)
    answer = bench.get("/ping")
    assert (answer.status_code, answer.data) == (200, b"")
    bench.engine.serving = ServingPhase(name=Phase.READY, done=2, total=2, failures={"big": "no memory"})
    answer = bench.get("/ping")
    assert (answer.status_code, answer.data, answer.headers["Trident-Failures"]) == (200, b"", "big: no memory")
    bench.engine.serving = ServingPhase(name=Phase.LOADING, model="big", done=1, total=3)
    setattr(bench.engine, mode.value, False)
    answer = bench.get("/ping")
    assert (answer.status_code, answer.mimetype) == (503, "application/json")
    assert answer.json == {"phase": "loading", "model": "big", "loaded": 1, "total": 3}


@pytest.mark.parametrize(
    ("settings", "limit", "expected"),
    [
        ({}, 64 << 20, (16, "MULTI_RECORD", 6)),
        ({"batch_strategy": "SINGLE_RECORD", "max_payload_mb": 50}, 64 << 20, (2, "SINGLE_RECORD", 50)),
        ({"max_payload_mb": 100, "max_concurrent_transforms": 4}, 100 << 20, (1, "MULTI_RECORD", 100)),
        ({"max_payload_mb": 100}, 10 << 20, (10, "MULTI_RECORD", 10)),
        ({"max_payload_mb": 0, "max_concurrent_transforms": 3}, 64 << 20, (3, "MULTI_RECORD", 0)),
        ({"max_concurrent_transforms": 2}, 1, (2, "MULTI_RECORD", 1)),
    ],
)
def test_execution_parameters_stay_within_the_limits(
    settings: dict[str, Any], limit: int, expected: tuple[int, str, int]
) -> None:
    answer = Bench(HttpOptions(max_input_size=limit), **settings).get("/execution-parameters")
    names = ("MaxConcurrentTransforms", "BatchStrategy", "MaxPayloadInMB")
    assert (answer.status_code, answer.json) == (200, dict(zip(names, expected, strict=True)))


def test_a_route_of_the_other_mode_is_404_with_the_reason() -> None:
    single, multi = Bench(), Bench(multi_model=True)
    for path, method in (
        ("/models", "GET"),
        ("/models/m", "GET"),
        ("/models/m", "DELETE"),
        ("/models/m/invoke", "POST"),
    ):
        answer = single.open(path, method=method)
        assert (answer.status_code, answer.mimetype) == (404, "application/json")
        assert "SAGEMAKER_MULTI_MODEL" in answer.json["error"]
    answer = multi.invoke()
    assert (answer.status_code, answer.json["error"][:17]) == (404, "this endpoint ser")
    assert multi.seen == []


# --- the v2 protocol


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("text/csv", b"2:1\n1:0\n"),
        ("application/jsonlines", b'"2:1"\n"1:0"\n'),
        ("application/x-npy", np.array([b"2:1", b"1:0"])),
    ],
)
def test_a_classification_has_the_same_text_in_every_format(accept: str, expected: Any) -> None:
    document = orjson.loads(V2) | {"outputs": [{"name": "OUT", "parameters": {"classification": 2}}]}
    answer = Bench().invoke(orjson.dumps(document), Accept=accept)
    assert (answer.status_code, answer.content_type) == (200, accept)
    if isinstance(expected, bytes):
        assert answer.data == expected
    else:
        assert np.load(io.BytesIO(answer.data)).tolist() == expected.tolist()


@pytest.mark.parametrize("data", [V2, b"[1,2]"])
def test_npy_for_several_outputs_is_refused_before_execution(data: bytes) -> None:
    bench = Bench()
    spec = bench.engine.model_spec("simple")
    two = replace(spec, outputs={**spec.outputs, "MORE": replace(spec.outputs["OUT"], name="MORE")})
    bench.engine.model_spec = lambda name, version=-1: two  # type: ignore[method-assign]
    answer = bench.invoke(data, Accept="application/x-npy")
    assert (answer.status_code, "application/x-npz" in answer.json["error"]) == (406, True)
    assert bench.seen == []
    one = orjson.dumps(orjson.loads(V2) | {"outputs": [{"name": "OUT"}]})
    assert bench.invoke(one, Accept="application/x-npy").status_code == 200


@pytest.mark.parametrize("content_type", ["application/json", "application/jsonlines", None])
def test_each_line_is_answered_separately(content_type: str | None) -> None:
    bench = Bench(batch=True)
    answer = bench.invoke(V2 + b"\n" + V2 + b"\n", content_type)
    assert (answer.status_code, answer.content_type) == (200, "application/jsonlines")
    assert [orjson.loads(line) for line in answer.data.splitlines()] == [ANSWER, ANSWER]
    answer = bench.invoke(b'{"instances":[[1,2],[3,4]]}\n{"instances":[[5]]}', content_type)
    assert answer.data == b'{"predictions":[[1,2],[3,4]]}\n{"predictions":[[5]]}\n'
    assert bench.invoke(V2 + b"\n" + V2, content_type, Accept="text/csv").data == b"1\n2\n" * 2
    assert bench.invoke(V2 + b"\n" + V2, content_type, Accept="image/png").status_code == 200
    assert bench.invoke(V2 + b"\n" + V2, content_type, Accept="application/x-npz").status_code == 406


def binary(size: int | str | None = None) -> tuple[bytes, str]:
    header = orjson.dumps(
        {
            "parameters": {"binary_data_output": True},
            "inputs": [{"name": "IN", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}}],
        }
    )
    return header + np.array(
        [5, 6], np.int32
    ).tobytes(), f"{BINARY};json-header-size={len(header) if size is None else size}"


def test_a_json_length_of_zero_means_raw_bytes_of_the_only_input() -> None:
    answer = Bench().invoke(np.array([7], np.int32).tobytes(), f"{BINARY};json-header-size=0")
    assert (answer.status_code, answer.mimetype) == (200, BINARY)
    assert answer.data.endswith(b"\7\0\0\0")


# --- errors and headers


def test_what_cannot_be_read_or_written_has_the_status_of_its_kind() -> None:
    bench = Bench(HttpOptions(max_input_size=len(V2)))
    answer = bench.invoke(b"x", "image/png")
    assert (answer.status_code, f"supported are: {BINARY};json-header-size=N, application/" in answer.text) == (
        415,
        True,
    )
    assert bench.invoke(V2, Accept="image/png").status_code == 200  # as from Triton, which ignores it
    answer = bench.invoke(b"[1, 2]", Accept="image/png")
    assert (answer.status_code, "available are: application/json, text/csv" in answer.json["error"]) == (406, True)
    bomb = gzip.compress(V2 + bytes(1000))
    assert bench.invoke(bomb, Content_Encoding="gzip").status_code == 413
    answer = bench.invoke(b"")
    assert (answer.status_code, answer.json["error"]) == (400, "the body is empty")
    assert len(bench.seen) == 1


def test_platform_headers_reach_the_model_in_every_format() -> None:
    names = {"X-Amzn-SageMaker-Custom-Attributes": "k=v", "X-Amzn-SageMaker-Session-Id": "s"}
    headers = {name.replace("-", "_"): value for name, value in names.items()}
    body, content_type = binary()
    bench = Bench()
    for data, kind in (
        (V2, "application/json"),
        (body, content_type),
        (body, content_type),
        (b"[1,2]", "application/json"),
    ):
        answer = bench.invoke(data, kind, X_Amzn_SageMaker_Inference_Id="id-1", **headers)
        assert answer.status_code == 200
        assert "X-Amzn-SageMaker-Custom-Attributes" not in answer.headers
        assert bench.seen[-1].parameters == {**names, "k": "v"}
        assert bench.seen[-1].id == "id-1"
    # The cached JSON of a binary request must not include headers.
    bench.invoke(body, content_type)
    assert (bench.seen[-1].parameters, bench.seen[-1].id) == (None, "")


# --- generate


@pytest.mark.parametrize("kind", [InferenceType.GENERATE, InferenceType.GENERATE_STREAM])
def test_inference_type_selects_the_task_of_invocations(kind: InferenceType) -> None:
    bench = Bench(inference_type=kind)
    bench.parameters = {"X-Amzn-SageMaker-Custom-Attributes": "from=model"}
    answer = bench.invoke(
        b'{"IN": [1, 2], "speed": 3}', X_Amzn_SageMaker_Inference_Id="i", X_Amzn_SageMaker_Custom_Attributes="a=b"
    )
    assert answer.status_code == 200
    is_stream = kind is InferenceType.GENERATE_STREAM
    assert answer.content_type == ("text/event-stream; charset=utf-8" if is_stream else "application/json")
    text: bytes = answer.data.removeprefix(b"data: ")
    assert (text == answer.data, text.endswith(b"\n\n")) == (not is_stream, is_stream)
    members = orjson.loads(text)
    assert (members["OUT"], members["id"], members["model_name"]) == ([1, 2], "i", "simple")
    assert answer.headers["X-Amzn-SageMaker-Custom-Attributes"] == "from=model"
    (request,) = bench.seen
    assert request.parameters == {"a": "b", "X-Amzn-SageMaker-Custom-Attributes": "a=b", "speed": 3}


def test_out_of_memory_in_a_stream_is_a_507_with_an_event() -> None:
    bench = Bench(inference_type=InferenceType.GENERATE_STREAM)
    bench.error = OutOfMemory("no memory")
    answer = bench.invoke(b'{"IN": 1}')
    assert (answer.status_code, answer.data) == (507, b'data: {"error":"no memory"}\n\n')


# --- request headers


ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"


def adopted(headers: dict[str, str], parameters: dict[str, Parameter] | None = None, request_id: str = "") -> Any:
    request = InferenceRequest("m", [], id=request_id)
    if parameters is not None:
        request.parameters = parameters
    environ = {f"HTTP_X_AMZN_SAGEMAKER_{k.upper().replace('-', '_')}": v for k, v in headers.items()}
    adopt_headers(environ | {"HTTP_ACCEPT": "*/*"}, request)
    return request


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("Custom-Attributes", 1024),
        ("Inference-Id", 64),
        ("Session-Id", 256),
        ("Target-Model", 1024),
        ("Target-Variant", 63),
        ("Enable-Explanations", 64),
    ],
)
def test_headers_over_their_limits_are_refused(name: str, limit: int) -> None:
    adopted({name: "x" * limit})
    with pytest.raises(InvalidRequest, match=f"X-Amzn-SageMaker-{name} has {limit + 1} characters, at most {limit}"):
        adopted({name: "x" * (limit + 1)})
    with pytest.raises(InvalidRequest, match="visible ASCII"):
        adopted({name: "caf\xe9"})


@pytest.mark.parametrize("value", ["a\r\nSet-Cookie: b", "caf\xe9", "x" * 1025])
def test_invalid_header_values_of_the_model_are_errors(value: str) -> None:
    with pytest.raises(BackendFailed, match=ATTRIBUTES):
        parameter_headers({ATTRIBUTES: value})


TIMES = InferenceTimes(1000, 2000, 3000, 4000, 8)
TIMING = (
    "timing_queue_us=1,timing_compute_input_us=2,timing_compute_infer_us=3,timing_compute_output_us=4,"
    "timing_batch_size=8"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, TIMING),
        ("a=1", f"a=1,{TIMING}"),
        ("x" * (1023 - len(TIMING)), "x" * (1023 - len(TIMING)) + "," + TIMING),
        ("x" * (1024 - len(TIMING)), "x" * (1024 - len(TIMING))),
    ],
    ids=["alone", "behind the model's", "just fits", "too long"],
)
def test_timings_are_added_to_custom_attributes_within_the_limit(before: str | None, after: str) -> None:
    headers = [("Content-Type", "text/csv")] + ([] if before is None else [(ATTRIBUTES, before)])
    add_timing(TIMES, headers)
    assert headers == [("Content-Type", "text/csv"), (ATTRIBUTES, after)]


# --- response type


@pytest.mark.parametrize("default", ["image/png", "csv"])
def test_an_invalid_default_type_stops_the_start(default: str) -> None:
    with pytest.raises(ConfigInvalid, match="SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT"):
        ResponseTypes(SageMakerSettings(default_accept=default))


def test_every_route_is_described_in_openapi() -> None:
    application = Bench().application
    described = {route.name: operation for route, operation in application.documented_routes()}
    assert {route.name for route in application.routes} - described.keys() == {
        "absent",
        "models",
        "model",
        "invoke_model",
    }
    # By these types openapi-python-client tells bodies apart; of files it takes the last one, CSV.
    body = described["invocations"].body
    assert isinstance(body, dict)
    json, *others = body.items()
    assert json == ("application/json", {"anyOf": ["InferRequest", "object"]})
    assert {short for _, short in others} == {"bytes"}
    assert others[-1][0] == "text/csv"
