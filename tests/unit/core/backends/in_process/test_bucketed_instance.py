"""An instance that pads its batches, on a real graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.unit.backend_serving import tensor_text
from tests.unit.bucket_configs import bucket_text
from tests.unit.onnx_models import identity, padded_view
from tests.unit.onnx_serving import serving
from trident.core.backends.backend import BucketedExecution
from trident.core.observability.statistics import BucketUse

VIEW = (
    bucket_text(BATCH_BUCKETS="1,4,8", LENGTH_BUCKETS="4,8", LENGTH_PAD_VALUES="INPUT0=100")
    + tensor_text("output", "SEEN", "INT64", [2])
    + tensor_text("output", "SHAPES_OUT", "INT32", [-1])
    + 'batch_input { kind: BATCH_ITEM_SHAPE target_name: "SHAPES" data_type: TYPE_INT32 source_input: "INPUT0" }'
)


def test_the_graph_sees_the_bucket_and_each_request_its_own(tmp_path: Path) -> None:
    lengths = (5, 8, 2)
    with serving(padded_view(), VIEW, tmp_path) as model:
        arrays = [np.full((1, length), length, np.float32) for length in lengths]
        answers = model.execute([model.request({"INPUT0": array}) for array in arrays])
    assert [answer["OUTPUT0"].tolist() for answer in answers] == [array.tolist() for array in arrays]
    assert [answer["SHAPES_OUT"].tolist() for answer in answers] == [[[length]] for length in lengths]
    assert [answer["SEEN"].tolist() for answer in answers] == [[[4, 8]]] * 3


def test_every_execution_says_what_it_padded(tmp_path: Path) -> None:
    with serving(identity(), bucket_text(BATCH_BUCKETS="1,8"), tmp_path) as model:
        uses = []
        for items in (1, 3):
            execution = model.run([model.request({"INPUT0": np.ones((items, 2), np.float32)})])
            assert isinstance(execution, BucketedExecution)
            uses.append(execution.bucket)
    assert uses == [BucketUse(1, 0, 2, 0), BucketUse(8, 0, 6, 10)]
