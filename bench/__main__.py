"""The benchmarks, by the first argument; without one, `compare`.

    python -m bench beside_triton   the compiled build and pure Python beside Triton, or another v2 server
    python -m bench compare         plain HTTP beside a Flask server
    python -m bench guard           this checkout beside another one, by default the last release, in two minutes
    python -m bench generation      generated tokens/s beside the loop of ONNX Runtime GenAI
    python -m bench grpc            gRPC beside binary HTTP
    python -m bench library         a call of the library beside one of the bare session, and one over HTTP
    python -m bench long_bodies     short requests beside long JSON bodies
    python -m bench models          many models on demand, few in memory, beside the bare load and an lru_cache
    python -m bench platforms       the routes of SageMaker and Vertex AI beside v2 infer
    python -m bench python          models in Python beside ONNX models of the same function
    python -m bench scale           scaling rules under bursts, in a simulation
    python -m bench shared_memory   tensors in shared memory beside binary ones
    python -m bench shapes          front ends and engines on 16 and 64 cores, by a model that is checked
    python -m bench size            lines, functions, names and import cycles of the program
    python -m bench text            embeddings of texts beside other servers and the bare loop
    python -m bench tracing         what tracing costs, off and on
    python -m bench tuning          the search of trident tune beside an exhaustive grid
    python -m bench wrk             trident bench's client beside wrk
    python -m bench workers         front-end processes before one engine process, and several engines

`--help` after any of them lists its options. With make: `make bench BENCH_ARGS='grpc --help'`.
"""

from __future__ import annotations

import sys
from importlib import import_module

# Imported when asked for: what some of them measure beside is not installed everywhere.
PROGRAMS = {
    name: name
    for name in ("generation", "guard", "library", "long_bodies", "scale", "shapes", "size", "text", "tuning", "wrk")
}
PROGRAMS["models"] = "on_demand"


def main() -> None:
    name, *arguments = sys.argv[1:] or [""]
    if name in PROGRAMS:
        import_module(f"bench.{PROGRAMS[name]}").main(arguments)
        return
    if name in ("--help", "-h"):
        print(__doc__)
        return
    from bench.comparisons import COMPARISONS
    from bench.runner import NothingMeasured, run

    if not name or name.startswith("-"):
        name, arguments = "compare", sys.argv[1:]
    if name not in COMPARISONS:
        sys.exit(f"there is no benchmark {name}; python -m bench --help lists them")
    try:
        run(name, COMPARISONS[name], arguments)
    except NothingMeasured as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
