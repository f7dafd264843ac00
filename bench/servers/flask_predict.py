"""A typical hand-written prediction container for Vertex AI: a Flask handler that loops over the instances.

MODELS=build/bench/vertex/models gunicorn --worker-class gevent --bind 127.0.0.1:9000 bench.servers.flask_predict:app
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from flask import Flask, request

app = Flask(__name__)
session = onnxruntime.InferenceSession(Path(os.environ["MODELS"]) / "tabular" / "1" / "model.onnx")


@app.post("/predict")
def predict() -> Any:
    """Run the model once for each instance."""
    predictions = []
    for instance in request.get_json()["instances"]:
        row = np.array([[float(value) for value in instance]], np.float32)
        predictions.append(session.run(None, {"IN": row})[0][0].tolist())
    return {"predictions": predictions}


@app.post("/predict_together")
def predict_together() -> Any:
    """Run the model once for all instances, which still needs a loop over their values."""
    rows = [[float(value) for value in instance] for instance in request.get_json()["instances"]]
    return {"predictions": session.run(None, {"IN": np.array(rows, np.float32)})[0].tolist()}


@app.get("/v2/health/ready")
def ready() -> str:
    return ""
