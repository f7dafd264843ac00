"""Buckets of batch sizes and lengths: their parameters, their limits, and their samples."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.backend_serving import config_of, tensor_text
from tests.unit.bucket_configs import bucket_model, bucket_text
from trident.core.config.resolve import WarmupInput, WarmupSample, bucket_samples, pad_value
from trident.core.config.validate import bucket_problems
from trident.core.inference.tensors import BY_NAME, Array


@pytest.mark.parametrize(
    ("datatype", "text", "expected"),
    [
        ("INT64", "", 0),
        ("INT8", "-128", -128),
        ("FP16", "0.5", 0.5),
        ("FP32", "-inf", -np.inf),
        ("BF16", "1", 0x3F80),
        ("BOOL", "true", True),
        ("BOOL", "0", False),
        ("BYTES", "", b""),
        ("BYTES", "ä", "ä".encode()),
    ],
)
def test_pad_values_are_elements_of_their_datatype(datatype: str, text: str, expected: object) -> None:
    value = pad_value(BY_NAME[datatype], text)
    assert value == expected
    assert datatype == "BYTES" or value.dtype == BY_NAME[datatype].dtype


@pytest.mark.parametrize(("datatype", "text"), [("INT8", "128"), ("UINT8", "-1"), ("INT32", "1.5"), ("BOOL", "maybe")])
def test_pad_value_beyond_the_datatype_is_refused(datatype: str, text: str) -> None:
    with pytest.raises(ValueError, match=text.lstrip("-")):
        pad_value(BY_NAME[datatype], text)


COUNTS = 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "C" data_type: TYPE_INT32 source_input: "INPUT0" }'
SHAPES = COUNTS.replace("BATCH_ELEMENT_COUNT", "BATCH_ITEM_SHAPE")
SCATTER = 'batch_output { target_name: "OUTPUT0" source_input: "INPUT0" }'


def found(text: str) -> list[tuple[str, str]]:
    return [(problem.message, problem.hint) for problem in bucket_problems(config_of(text), "m")]


@pytest.mark.parametrize(
    "text",
    [
        bucket_text(),
        bucket_text(BATCH_BUCKETS="1,2,8"),
        bucket_text(LENGTH_BUCKETS="16"),
        bucket_text(max_batch_size=0, LENGTH_BUCKETS="16,32"),
        bucket_text(BATCH_BUCKETS="8", LENGTH_BUCKETS="16", LENGTH_PAD_VALUES="INPUT0=-inf", LENGTH_OUTPUTS="OUTPUT0"),
        bucket_text(BATCH_BUCKETS="8", dims=(4,)),
        bucket_text(BATCH_BUCKETS="8") + SHAPES,
    ],
)
def test_good_buckets_have_no_problem(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    ("sizes", "message", "hint"),
    [
        ("", "BATCH_BUCKETS is empty for m", 'sizes with commas, such as "1,4,16"'),
        ("1,,8", "BATCH_BUCKETS '1,,8' is not a list of sizes for m", 'such as "1,4,16"'),
        ("one", "BATCH_BUCKETS 'one' is not a list of sizes for m", 'such as "1,4,16"'),
        ("0,8", "BATCH_BUCKETS has a size below 1 for m", "sizes are 1 or more"),
        ("8,4,4", "BATCH_BUCKETS '8,4,4' is not ascending for m", 'write "4,8"'),
        (
            "1,4",
            "the largest size of BATCH_BUCKETS is 4, but max_batch_size is 8 for m",
            "they must be equal: set max_batch_size to 4, or end the sizes with 8",
        ),
        (
            "9999999999",
            "BATCH_BUCKETS has the size 9999999999, larger than any dimension, for m",
            "2147483647 at most",
        ),
    ],
)
def test_sizes_are_checked(sizes: str, message: str, hint: str) -> None:
    assert found(bucket_text(BATCH_BUCKETS=sizes)) == [(message, hint)]


def test_too_many_bucket_combinations_are_refused() -> None:
    sizes, lengths = (",".join(map(str, range(1, most + 1))) for most in (101, 100))
    assert found(bucket_text(max_batch_size=101, BATCH_BUCKETS=sizes, LENGTH_BUCKETS=lengths)) == [
        (
            "'parameters[BATCH_BUCKETS]' of model 'm' means 10100 combinations, more than the maximum of 10000",
            "each is executed at the load: write fewer sizes",
        )
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            bucket_text(max_batch_size=0, BATCH_BUCKETS="4"),
            "BATCH_BUCKETS needs a model that batches, and max_batch_size is 0 for m",
        ),
        (bucket_text(dims=(4,), LENGTH_BUCKETS="8"), "LENGTH_BUCKETS needs an input with a variable dimension for m"),
        (
            bucket_text(dims=(-1, -1), LENGTH_BUCKETS="8"),
            "input 'INPUT0' has several variable dimensions, and LENGTH_BUCKETS pads one, for m",
        ),
        (
            bucket_text(more="reshape { shape: [ -1, 1 ] }", LENGTH_BUCKETS="8"),
            "input 'INPUT0' has a reshape, and LENGTH_BUCKETS pads only what the graph takes as it is, for m",
        ),
        (
            bucket_text(LENGTH_BUCKETS="8", LENGTH_PAD_VALUES="INPUT0"),
            "LENGTH_PAD_VALUES: 'INPUT0' is not NAME=VALUE for m",
        ),
        (
            bucket_text(LENGTH_BUCKETS="8", LENGTH_PAD_VALUES="OTHER=1"),
            "LENGTH_PAD_VALUES names 'OTHER', which is not an input with a variable dimension, for m",
        ),
        (
            bucket_text(datatype="INT8", LENGTH_BUCKETS="8", LENGTH_PAD_VALUES="INPUT0=300"),
            "LENGTH_PAD_VALUES: input 'INPUT0' of TYPE_INT8 cannot hold '300' for m",
        ),
        (
            bucket_text(LENGTH_BUCKETS="8", LENGTH_OUTPUTS="NONE"),
            "LENGTH_OUTPUTS names 'NONE', which is not an output of m",
        ),
        (
            bucket_text(LENGTH_BUCKETS="8", LENGTH_OUTPUTS="OUTPUT0", out_dims=(4,)),
            "LENGTH_OUTPUTS names 'OUTPUT0', which has no variable dimension, for m",
        ),
        (
            bucket_text(LENGTH_OUTPUTS="OUTPUT0"),
            "LENGTH_OUTPUTS is without effect, because there is no LENGTH_BUCKETS, for m",
        ),
        (
            bucket_text(BATCH_BUCKETS="8", more="allow_ragged_batch: true"),
            "input 'INPUT0' is ragged, and batch buckets cannot pad it, for m",
        ),
        (
            bucket_text(BATCH_BUCKETS="8", more="is_shape_tensor: true"),
            "input 'INPUT0' is a shape tensor, whose values batch buckets would pad, for m",
        ),
        (
            bucket_text(BATCH_BUCKETS="8") + COUNTS,
            "batch input kind 'BATCH_ELEMENT_COUNT' has an element for each request, which batch buckets cannot pad, "
            "for m",
        ),
        (
            bucket_text(BATCH_BUCKETS="8") + "sequence_batching { }",
            "the rows of sequences belong to their slots, so that batch buckets cannot add rows, for m",
        ),
        (
            bucket_text(BATCH_BUCKETS="8") + SCATTER,
            "a batch output has no fixed shape, so that it cannot be used with batch buckets for m",
        ),
    ],
)
def test_unpaddable_configuration_is_a_problem(text: str, message: str) -> None:
    [(said, hint)] = found(text)
    assert said == message
    assert hint


def test_without_a_warmup_sample_the_values_are_zeros_and_empty_strings() -> None:
    text = bucket_text(LENGTH_BUCKETS="2") + tensor_text("input", "TEXT", "BYTES", [2])
    spec, _ = bucket_model(text)
    (sample,) = bucket_samples(spec, [])
    assert [given.array.tolist() for given in sample.inputs] == [[0, 0], [b"", b""]]


def test_the_values_of_the_first_warmup_sample_are_repeated_to_the_length() -> None:
    spec, _ = bucket_model(bucket_text(LENGTH_BUCKETS="2,5"))
    values: Array = np.array([7, 8, 9], np.float32)
    given = WarmupSample("mine", 1, 1, (WarmupInput("INPUT0", BY_NAME["FP32"], values),))
    made = bucket_samples(spec, [given, given])
    assert [sample.inputs[0].array.tolist() for sample in made] == [[7, 8, 9, 7, 8], [7, 8]]
