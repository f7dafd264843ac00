"""A case whose executions cost far more than what is around them: the digit CNN with more channels, on one thread.

One engine on a core of its own is used up then, while front ends and client have most of the other one. So a second
engine shows even on two cores whether engines are independent of each other.
"""

from __future__ import annotations

from pathlib import Path

from bench.cases import Case
from bench.models import digits_cnn, served

# About 2.6 * 10^8 multiplications an image; the digit CNN has 10^6.
_CHANNELS = (192, 768)
_THREADS = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'

HEAVY = Case(
    "heavy",
    "28x28 digit CNN of {} and {} channels, binary".format(*_CHANNELS),
    "digits_cnn_heavy",
    (("INPUT", "FP32", digits_cnn.IMAGE),),
    ("OUTPUT",),
    binary=True,
)


def build_heavy(repository: Path) -> None:
    """Write the model of the case. Without a batcher each request is an execution of its own."""
    image = ", ".join(map(str, digits_cnn.IMAGE))
    config = served.CONFIG.format(batch=1, dims_in=image, dims_out=digits_cnn.CLASSES, batching=_THREADS)
    served.write(repository / HEAVY.model, config, digits_cnn.to_onnx(_CHANNELS))
