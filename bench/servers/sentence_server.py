"""sentence-transformers in a Flask server, as many people serve embeddings; see bench/text.py.

It runs in an environment of its own: FOLDER=all-MiniLM-L6-v2 gunicorn --workers 2 bench.servers.sentence_server:app
"""

import os
from typing import Any

from flask import Flask, jsonify, request
from sentence_transformers import SentenceTransformer

app = Flask(__name__)
model = SentenceTransformer(
    os.environ["FOLDER"],
    device="cpu",
    backend="onnx",
    model_kwargs={"provider": "CPUExecutionProvider", "file_name": "model.onnx"},
)


@app.post("/embed")
def embed() -> Any:
    return jsonify(model.encode(request.get_json()["texts"], show_progress_bar=False).tolist())


@app.get("/")
def ready() -> str:
    return ""
