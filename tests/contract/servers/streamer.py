"""A decoupled Python model that follows the script in its request."""

from __future__ import annotations

from pathlib import Path

CONFIG = """
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "script" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "said" data_type: TYPE_STRING dims: [ 1 ] } ]
"""

MODEL = '''
"""The steps of a script: say TEXT, fail TEXT, code NAME (an error with that code), count N, wait FILE, cancelled FILE;
any other text is said.
"""

import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

PAUSE_S = 0.002


def said(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("said", np.array([text], dtype=object))])


def write(path, text):
    with open(path + ".part", "w") as file:
        file.write(text)
    os.replace(path + ".part", path)


def follow(sender, steps):
    for step in steps:
        verb, _, rest = step.partition(" ")
        if verb == "say":
            sender.send(said(rest.encode()))
        elif verb == "fail":
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(rest)))
        elif verb == "code":
            error = pb_utils.TritonError("it said " + rest, getattr(pb_utils.TritonError, rest))
            sender.send(pb_utils.InferenceResponse(error=error))
        elif verb == "count":
            for number in range(int(rest)):
                sender.send(said(str(number).encode()))
        elif verb == "wait":
            while not os.path.exists(rest):
                time.sleep(PAUSE_S)
        elif verb == "cancelled":
            while not sender.is_cancelled():
                time.sleep(PAUSE_S)
            write(rest, "cancelled")
        else:
            sender.send(said(step.encode()))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class TritonPythonModel:
    def initialize(self, args):
        """Report the blocks of a cache, as a language model does."""
        self.blocks = pb_utils.MetricFamily(
            name="nv_trt_llm_kv_cache_block_metrics", description="cache", kind=pb_utils.MetricFamily.GAUGE
        )
        self.metrics = []
        for kind, value in (("used", 30), ("max", 120), ("tokens_per", 64)):
            metric = self.blocks.Metric(labels={"kv_cache_block_type": kind})
            metric.set(value)
            self.metrics.append(metric)

    def execute(self, requests):
        for request in requests:
            script = pb_utils.get_input_tensor_by_name(request, "script").as_numpy()
            steps = [step.decode() for step in script]
            if steps == ["raise"]:
                raise ValueError("raised before the first response")
            threading.Thread(target=follow, args=(request.get_response_sender(), steps)).start()
'''


def write_streamer(repository: Path) -> Path:
    """Write the model `streamer` into the repository; returns the repository."""
    version = repository / "streamer" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    (version / "model.py").write_text(MODEL)
    return repository
