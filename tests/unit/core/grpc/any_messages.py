"""Hypothesis strategies for ModelInferRequest."""

from __future__ import annotations

from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import ModelInferRequest

names = st.sampled_from(["", "simple", "INPUT0", "a" * 130, "ä", "nope"])
sizes = st.integers(0, 300)
parameters = st.dictionaries(
    st.sampled_from(["mine", "priority", "sequence_id", "timeout", "shared_memory_region", "triton_x"]),
    st.sampled_from(
        [
            {"int64_param": -1},
            {"string_param": "s"},
            {"bool_param": False},
            {"double_param": 0.5},
            {"uint64_param": 7},
            {},
        ]
    ),
    max_size=2,
)
contents = st.one_of(
    st.builds(lambda values: {"int_contents": values}, st.lists(st.integers(-5, 500), max_size=4)),
    st.builds(lambda values: {"fp32_contents": values}, st.lists(st.floats(width=32), max_size=4)),
    st.builds(lambda values: {"bytes_contents": values}, st.lists(st.binary(max_size=3), max_size=3)),
)
inputs = st.fixed_dictionaries(
    {"name": names, "datatype": st.sampled_from(["INT32", "FP32", "BYTES", "INT8", "FP16", "odd"])},
    optional={
        "shape": st.lists(st.sampled_from([-1, 0, 1, 16, 2**40]), max_size=4),
        "parameters": parameters,
        "contents": contents,
    },
)
messages = st.builds(
    lambda **fields: ModelInferRequest(**fields),
    model_name=st.sampled_from(["simple", "simple", "simple", "nope", ""]),
    model_version=st.sampled_from(["", "", "1", "x"]),
    id=st.sampled_from(["", "1", "i" * 127, "i" * 128, "ä"]),
    parameters=st.one_of(st.just({}), parameters),
    inputs=st.lists(inputs, max_size=3),
    outputs=st.lists(st.fixed_dictionaries({"name": names}, optional={"parameters": parameters}), max_size=2),
    raw_input_contents=st.lists(st.builds(bytes, sizes), max_size=4),
)
