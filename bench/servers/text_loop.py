"""Tokenizer, session and pooling in a loop, without a server: the bound of a server of embeddings.

    python -m bench.servers.text_loop FOLDER TEXTS.json SECONDS

The file has the texts of each request. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


def embed(tokenizer: Any, session: Any, texts: list[str]) -> Any:
    encodings = tokenizer.encode_batch_fast(texts)
    ids = np.array([encoding.ids for encoding in encodings], np.int64)
    mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    (vectors,) = session.run(["last_hidden_state"], feed)
    weights = mask[:, None, :].astype(np.float32)
    pooled = np.matmul(weights, vectors)[:, 0] / weights.sum(axis=2)
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


def main() -> None:
    folder, file, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(256)
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    requests = json.loads(file.read_text())
    embed(tokenizer, session, requests[0])
    done, began, began_cpu = 0, time.perf_counter(), time.process_time()
    while (took := time.perf_counter() - began) < seconds:
        embed(tokenizer, session, requests[done % len(requests)])
        done += 1
    cpu_us = (time.process_time() - began_cpu) / done * 1e6
    print(json.dumps({"requests_per_second": done / took, "cpu_us": cpu_us}))


if __name__ == "__main__":
    main()
