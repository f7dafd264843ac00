"""A model that behaves as on an accelerator: each execution takes a fixed time and some more for each item, and no CPU.

There is one for the target, and one for each fixed setting.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from core.scheduling.latency_target import BatchSetting

FIXED_MS = 4.0
ITEM_MS = 0.05
LARGEST = 64
TARGET = "target"
BODY = json.dumps({"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()

_CODE = f"""
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
        time.sleep({FIXED_MS / 1000} + {ITEM_MS / 1000} * sum(map(len, arrays)))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", array)]) for array in arrays]
"""
_CONFIG = """\
backend: "python"
max_batch_size: {size}
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
{parameters}
"""


def name_of(setting: BatchSetting) -> str:
    return f"delay_{setting.delay_ns // 1000}_size_{setting.max_size}"


def build(repository: Path, target_ms: float, settings: list[BatchSetting]) -> None:
    """Write all models under `repository`, which is emptied first."""
    shutil.rmtree(repository, ignore_errors=True)
    parameter = f'parameters {{ key: "TARGET_P99_MS" value {{ string_value: "{target_ms:g}" }} }}'
    _write(repository / TARGET, _CONFIG.format(size=LARGEST, delay_us=0, parameters=parameter))
    for setting in settings:
        config = _CONFIG.format(size=setting.max_size, delay_us=setting.delay_ns // 1000, parameters="")
        _write(repository / name_of(setting), config)


def _write(folder: Path, config: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / "1" / "model.py").write_text(_CODE)
