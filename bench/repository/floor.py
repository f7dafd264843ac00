"""What a cold start cannot do without: `python -m bench.repository.floor ENDPOINT MODEL FOLDER`.

Downloads version 1 of a model with boto3, makes a session of it, and ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

BUCKET = "bench"


def main(endpoint: str, model: str, folder: Path) -> None:
    import boto3
    from boto3.s3.transfer import TransferConfig, create_transfer_manager

    client = boto3.session.Session().client("s3", endpoint_url=endpoint)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{model}/")
    with create_transfer_manager(client, TransferConfig()) as manager:
        futures = []
        for entry in [entry for page in pages for entry in page["Contents"]]:
            path = folder / entry["Key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            futures.append(manager.download(BUCKET, entry["Key"], str(path)))
        for future in futures:
            future.result()
    import onnxruntime

    onnxruntime.InferenceSession(folder / model / "1" / "model.onnx", providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
