"""Which dimensions of outputs are cut back: those that the graph or the configuration says to be as long as inputs."""

from __future__ import annotations

import logging

import pytest

from tests.unit.backend_serving import tensor_text
from tests.unit.bucket_configs import bucket_model, bucket_text
from trident.core.backends.in_process import length_axes

SECOND = tensor_text("output", "SECOND", "FP32", [4, -1])
NAMED = {"OUTPUT0": [1], "SECOND": [0, 2], "NOT_SERVED": [1]}


def test_a_dimension_that_the_graph_names_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    text = bucket_text(LENGTH_BUCKETS="4") + SECOND
    assert length_axes(*bucket_model(text), NAMED) == {"OUTPUT0": (1,), "SECOND": (2,)}
    assert caplog.text == ""


def test_another_variable_dimension_is_logged_and_not_cut(caplog: pytest.LogCaptureFixture) -> None:
    text = bucket_text(LENGTH_BUCKETS="4", out_dims=(-1, -1))
    with caplog.at_level(logging.WARNING):
        assert length_axes(*bucket_model(text), {"OUTPUT0": [2]}) == {"OUTPUT0": (2,)}
    assert "output 'OUTPUT0' of model 'model' has variable dimensions of which the graph does not say" in caplog.text


def test_the_configuration_may_name_the_output(caplog: pytest.LogCaptureFixture) -> None:
    text = bucket_text(LENGTH_BUCKETS="4", LENGTH_OUTPUTS="OUTPUT0, SECOND") + SECOND
    assert length_axes(*bucket_model(text)) == {"OUTPUT0": (1,), "SECOND": (2,)}
    assert caplog.text == ""


def test_the_dimensions_are_those_that_the_model_makes() -> None:
    text = bucket_text(max_batch_size=0, LENGTH_BUCKETS="4", LENGTH_OUTPUTS="SECOND")
    text += tensor_text("output", "SECOND", "FP32", [-1, 6], "reshape { shape: [ 2, -1, 3 ] }")
    assert length_axes(*bucket_model(text)) == {"SECOND": (1,)}


def test_without_lengths_nothing_is_cut() -> None:
    assert length_axes(*bucket_model(bucket_text(BATCH_BUCKETS="8")), NAMED) == {}
