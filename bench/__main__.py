"""The benchmarks, by the first argument; without one, plain HTTP.

    python -m bench                 plain HTTP beside a Flask server and the bare loop, or beside another v2 server
    python -m bench guard           this checkout beside another one, by default the last release, in two minutes
    python -m bench buckets         batch buckets for texts of many lengths
    python -m bench ensembles       an ensemble of two steps beside one of them
    python -m bench frameworks      each framework beside ONNX Runtime, and beside its own library
    python -m bench generation      generated tokens/s beside the loop of ONNX Runtime GenAI
    python -m bench grpc            gRPC beside binary HTTP, and beside a grpcio server
    python -m bench large           large tensors beside a bare loop over the socket
    python -m bench python          models in Python beside ONNX models of the same function
    python -m bench repository      the model repository: cold starts, and the start of a tiny server
    python -m bench sagemaker       SageMaker's container
    python -m bench scale           scaling rules under bursts, in a simulation
    python -m bench sequences       sequences beside dynamic batching
    python -m bench shared_memory   tensors in shared memory beside binary ones
    python -m bench tails           the slowest requests, beside scrapes, probes, reloads and idle connections
    python -m bench text            embeddings of texts beside other servers and the bare loop
    python -m bench tracing         what tracing costs, off and on
    python -m bench tuning          the search of trident tune beside an exhaustive grid
    python -m bench vertex          Vertex AI's container
    python -m bench workers         front-end processes before one engine process, and several engines
    python -m bench wrk             trident bench's client beside wrk

`--help` after any of them lists its options. With make: `make bench BENCH_ARGS='sagemaker --help'`.
"""

from __future__ import annotations

import sys
from importlib import import_module

from bench import plain
from bench.comparisons import COMPARISONS
from bench.frameworks import FRAMEWORKS
from bench.repository import REPOSITORY
from bench.runner import NothingMeasured, run

BENCHMARKS = COMPARISONS | {"frameworks": FRAMEWORKS, "repository": REPOSITORY}
# Imported when asked for: what some of them measure beside is not installed everywhere.
PROGRAMS = ("generation", "guard", "scale", "tails", "text", "tuning", "wrk")


def main() -> None:
    name, *arguments = sys.argv[1:] or [""]
    try:
        if name in BENCHMARKS:
            run(name, BENCHMARKS[name], arguments)
        elif name in PROGRAMS:
            import_module(f"bench.{name}").main(arguments)
        else:
            plain.main(sys.argv[1:])
    except NothingMeasured as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
