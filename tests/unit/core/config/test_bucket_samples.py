"""The warmup of batch buckets: one sample for each."""

from __future__ import annotations

import numpy as np

from tests.unit.backend_serving import config_of, spec_of, tensor_text
from tests.unit.bucket_configs import bucket_model, bucket_text
from trident.core.config.warmup import WarmupInput, WarmupSample, bucket_samples
from trident.core.inference.tensors import BY_NAME, Array


def shapes(samples: list[WarmupSample]) -> list[tuple[str, int, tuple[int, ...]]]:
    return [(sample.name, sample.batch_size, sample.inputs[0].array.shape) for sample in samples]


def test_every_combination_has_a_sample_the_largest_first() -> None:
    spec, _ = bucket_model(bucket_text(BATCH_BUCKETS="1,8", LENGTH_BUCKETS="4,16", dims=(-1, 3)))
    assert shapes(bucket_samples(spec, [])) == [
        ("bucket of batch size 8, length 16", 8, (16, 3)),
        ("bucket of batch size 8, length 4", 8, (4, 3)),
        ("bucket of batch size 1, length 16", 1, (16, 3)),
        ("bucket of batch size 1, length 4", 1, (4, 3)),
    ]


def test_one_kind_of_bucket_is_enough() -> None:
    spec, _ = bucket_model(bucket_text(BATCH_BUCKETS="2,8"))
    assert shapes(bucket_samples(spec, [])) == [
        ("bucket of batch size 8", 8, (1,)),
        ("bucket of batch size 2", 2, (1,)),
    ]
    spec, _ = bucket_model(bucket_text(max_batch_size=0, LENGTH_BUCKETS="4"))
    assert shapes(bucket_samples(spec, [])) == [("bucket of length 4", 1, (4,))]


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


def test_a_model_without_buckets_has_none() -> None:
    assert bucket_samples(spec_of(config_of(bucket_text())), []) == []
