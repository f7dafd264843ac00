"""A typical server written in an afternoon, the yardstick of the benchmark: v2 infer.

MODELS=build/bench/models gunicorn --worker-class gevent --bind 127.0.0.1:9000 bench.servers.flask_server:app
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from flask import Flask, Response, request

DTYPES = {"FP32": np.float32, "INT32": np.int32}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
app = Flask(__name__)
sessions = {
    path.parts[-3]: onnxruntime.InferenceSession(path) for path in Path(os.environ.get("MODELS", "")).glob("*/1/*.onnx")
}
answered = {"count": 0}


@app.post("/v2/models/<model>/infer")
def infer(model: str) -> Any:
    body = request.get_data()
    offset = int(request.headers.get("Inference-Header-Content-Length", 0))
    feeds = {}
    for tensor in json.loads(body[:offset] if offset else body)["inputs"]:
        if "data" in tensor:
            array = np.array(tensor["data"], DTYPES[tensor["datatype"]])
        else:
            size = tensor["parameters"]["binary_data_size"]
            array = np.frombuffer(body[offset : offset + size], DTYPES[tensor["datatype"]])
            offset += size
        feeds[tensor["name"]] = array.reshape(tensor["shape"])
    session = sessions[model]
    arrays = session.run(None, feeds)
    outputs: list[dict[str, Any]] = [
        {"name": output.name, "datatype": NAMES[array.dtype], "shape": array.shape}
        for output, array in zip(session.get_outputs(), arrays, strict=True)
    ]
    for output, array in zip(outputs, arrays, strict=True):
        output |= {"parameters": {"binary_data_size": array.nbytes}} if offset else {"data": array.ravel().tolist()}
    header = json.dumps({"model_name": model, "model_version": "1", "outputs": outputs})
    answered["count"] += 1
    if not offset:
        return Response(header, content_type="application/json")
    length = {"Inference-Header-Content-Length": str(len(header))}
    chunks = [header.encode(), *(array.tobytes() for array in arrays)]
    return Response(b"".join(chunks), content_type="application/octet-stream", headers=length)


@app.get("/v2/models/<model>/stats")
def statistics(model: str) -> Any:
    """The counter of requests for the benchmark: those of all models, one of which is asked at a time."""
    return {"model_stats": [{"inference_stats": {"success": answered}}]}


@app.get("/v2/health/ready")
def ready() -> str:
    return ""
