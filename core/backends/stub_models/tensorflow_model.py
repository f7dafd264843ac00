"""The model of a process: runs a SavedModel or a frozen graph on the batches that it gets.

It imports nothing of the server but the library of Python models, so that it runs in any environment with TensorFlow.
Source: docs/spec/framework-backends.md section 6.4.
"""

from __future__ import annotations

import json
import os

# Hides TensorFlow's lines about the processor.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from trident_stub.model import ModelFailed

from batches import failed, gathered, responses

tf.get_logger().setLevel("ERROR")

_NOT_SERVED = ("__saved_model_init_op", "__saved_model_train_op")


class TritonPythonModel:
    """One instance: a session of its own."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in (config.get("parameters") or {}).items()}
        path = os.path.join(args["model_repository"], args["model_version"], config["default_model_filename"])
        self._batching = config.get("max_batch_size", 0) > 0
        self._outputs = [entry["name"] for entry in config["output"]]
        graph = tf.Graph()
        with graph.as_default():
            intra, inter = (int(parameters.get(name, "0")) for name in ("TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS"))
            self._session = tf.compat.v1.Session(
                graph=graph,
                config=tf.compat.v1.ConfigProto(
                    # The threads that the plan grants are in the environment.
                    intra_op_parallelism_threads=intra or int(os.environ.get("OMP_NUM_THREADS", "0")),
                    inter_op_parallelism_threads=inter or int(os.environ.get("OMP_NUM_THREADS", "0")),
                    allow_soft_placement=True,
                ),
            )
            try:
                if config["platform"] == "tensorflow_graphdef":
                    definition = tf.compat.v1.GraphDef()
                    with open(path, "rb") as file:
                        definition.ParseFromString(file.read())
                    tf.import_graph_def(definition, name="")
                    self._feeds = {entry["name"]: f"{entry['name']}:0" for entry in config["input"]}
                    self._fetches = {name: f"{name}:0" for name in self._outputs}
                else:
                    tag = parameters.get("TF_GRAPH_TAG", "serve")
                    loaded = tf.compat.v1.saved_model.loader.load(self._session, [tag], path)
                    signatures = {key: value for key, value in loaded.signature_def.items() if key not in _NOT_SERVED}
                    key = parameters.get("TF_SIGNATURE_DEF") or "serving_default"
                    chosen = signatures.get(key) or signatures[min(signatures)]
                    self._feeds, self._fetches = (
                        {name: info.name for name, info in chosen.inputs.items()},
                        {name: info.name for name, info in chosen.outputs.items()},
                    )
                _run_init_operations(self._session, parameters, path)
            except (tf.errors.OpError, OSError, RuntimeError, ValueError, KeyError) as error:
                raise ModelFailed(str(error)) from error
        self._callables = {}

    def execute(self, requests):
        names = sorted({name for request in requests for name in request.requested_output_names()})
        try:
            feeds = gathered(requests)
            key = (tuple(feeds), tuple(names))
            if key not in self._callables:
                self._callables[key] = self._session.make_callable(
                    [self._fetches[name] for name in names], [self._feeds[name] for name in feeds]
                )
            run = self._callables[key]
            results = dict(zip(names, run(*feeds.values())))  # each fetch has a result
        except (tf.errors.OpError, ValueError, TypeError) as error:
            return failed(requests, getattr(error, "message", None) or str(error))
        arrays = {name: np.asarray(results[name]) for name in self._outputs if name in results}
        return responses(requests, arrays, self._batching)

    def finalize(self):
        self._session.close()


def _run_init_operations(session, parameters, path):
    name = parameters.get("TF_INIT_OPS_FILE")
    if not name:
        return
    version = os.path.dirname(path)
    for folder in (version, os.path.dirname(version)):
        file = os.path.join(folder, os.path.basename(name))
        if os.path.isfile(file):
            with open(file, encoding="utf-8") as text:
                for operation in json.load(text)["init_ops"]:
                    session.run(session.graph.get_operation_by_name(operation))
            return
    raise ValueError(f"unable to find the file '{name}' of TF_INIT_OPS_FILE")
