"""The benchmarks, by the first argument; without one, plain HTTP.

    python -m bench                 plain HTTP beside a Flask server and the bare loop, or beside another v2 server
    python -m bench compare         this checkout beside another one, by turns of a fraction of a second
    python -m bench frameworks      each framework beside ONNX Runtime, and beside its own library
    python -m bench ensembles       an ensemble of two steps beside one of them
    python -m bench grpc            gRPC beside binary HTTP, and beside a grpcio server
    python -m bench guard           this checkout beside the last release, every door in two minutes
    python -m bench large           large tensors beside a bare loop over the socket
    python -m bench python          models in Python beside ONNX models of the same function
    python -m bench repository      the model repository: downloads, starts, many models, loads under load
    python -m bench sagemaker       SageMaker's container
    python -m bench scaling         what a request costs each process, and what follows for more cores
    python -m bench sequences       sequences beside dynamic batching, and their memory
    python -m bench shared_memory   tensors in shared memory beside binary ones
    python -m bench tails           the slowest requests, beside scrapes, probes, reloads and idle connections
    python -m bench texts           health while large texts are read
    python -m bench tracing         what tracing costs, off and on
    python -m bench tuning          a batcher with a target beside the best fixed setting
    python -m bench vertex          Vertex AI's container
    python -m bench workers         front-end processes before one engine process

`--help` after any of them lists its options. With make: `make bench BENCH_ARGS='sagemaker --help'`.
"""

from __future__ import annotations

import sys

from bench import (
    compare,
    ensembles,
    frameworks,
    guard,
    plain,
    python,
    scaling,
    sequences,
    shared_memory,
    texts,
    tracing,
    tuning,
    vertex,
    workers,
)
from bench.grpc import run as grpc
from bench.large import run as large
from bench.repository import run as repository
from bench.sagemaker import run as sagemaker
from bench.tails import run as tails

FAMILIES = {
    "compare": compare.main,
    "ensembles": ensembles.main,
    "frameworks": frameworks.main,
    "grpc": grpc.main,
    "guard": guard.main,
    "large": large.main,
    "python": python.main,
    "repository": repository.main,
    "sagemaker": sagemaker.main,
    "scaling": scaling.main,
    "sequences": sequences.main,
    "shared_memory": shared_memory.main,
    "tails": tails.main,
    "texts": texts.main,
    "tracing": tracing.main,
    "tuning": tuning.main,
    "vertex": vertex.main,
    "workers": workers.main,
}


def main() -> None:
    family = FAMILIES.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if family:
        family(sys.argv[2:])
    else:
        plain.main(sys.argv[1:])


if __name__ == "__main__":
    main()
