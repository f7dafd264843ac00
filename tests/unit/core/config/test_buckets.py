"""Batch buckets, read from the parameters of a configuration."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.backend_serving import config_of
from tests.unit.bucket_configs import bucket_text
from trident.core.config.batching import bucket_spec, pad_value
from trident.core.config.spec import BucketSpec
from trident.core.inference.tensors import BY_NAME


def test_sizes_axes_and_values_are_read() -> None:
    text = bucket_text(
        BATCH_BUCKETS="1, 4,8", LENGTH_BUCKETS="16,32", LENGTH_PAD_VALUES="INPUT0=-1.5", LENGTH_OUTPUTS="OUTPUT0"
    )
    assert bucket_spec(config_of(text)) == BucketSpec(
        batch_sizes=(1, 4, 8),
        lengths=(16, 32),
        axes={"INPUT0": 1},
        pad_values={"INPUT0": "-1.5"},
        outputs=("OUTPUT0",),
    )


def test_without_batching_the_first_dimension_may_be_the_length() -> None:
    spec = bucket_spec(config_of(bucket_text(max_batch_size=0, LENGTH_BUCKETS="16")))
    assert spec is not None
    assert spec.axes == {"INPUT0": 0}


def test_without_buckets_there_is_no_spec() -> None:
    assert bucket_spec(config_of(bucket_text())) is None


def test_other_backends_keep_their_parameters_to_themselves() -> None:
    config = config_of(bucket_text(BATCH_BUCKETS="what it likes"))
    config.backend = "python"
    assert bucket_spec(config) is None


def test_a_size_is_the_smallest_that_holds_the_batch() -> None:
    spec = BucketSpec(batch_sizes=(1, 4, 8), lengths=(16, 32))
    assert [spec.rows(items) for items in (1, 2, 4, 5, 8)] == [1, 4, 4, 8, 8]
    assert [spec.length(longest) for longest in (0, 16, 17)] == [16, 16, 32]
    assert (BucketSpec().rows(3), BucketSpec().length(3)) == (3, 0)


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
def test_a_datatype_refuses_what_it_cannot_hold(datatype: str, text: str) -> None:
    with pytest.raises(ValueError, match=text.lstrip("-")):
        pad_value(BY_NAME[datatype], text)
