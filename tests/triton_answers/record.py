"""Record what a real Triton answers, and show where Trident differs: `python -m tests.triton_answers.record`, by hand.

    TRITON='…/tritonserver …' python -m tests.triton_answers.record [--compare] [AREA …]

`--compare` writes nothing: it asks both servers, and prints the answers that differ, but those that do on purpose.
See build_triton.sh for a Triton.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from types import ModuleType

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import RECORDED, Answers, all_answers, area_name, areas, different, environment
from tests.triton_answers.servers import TritonProcess


def ask(area: ModuleType, kind: type[ServerProcess], *options: str) -> Answers:
    with tempfile.TemporaryDirectory() as temporary:
        repository = Path(temporary, "models")
        repository.mkdir()
        area.write_models(repository)
        variables = environment(area, repository)
        with kind(repository, Path(temporary, "log"), *area.OPTIONS, *options, environment=variables) as server:
            return all_answers(area, server)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="print what differs; write nothing")
    parser.add_argument("areas", nargs="*", metavar="AREA")
    options = parser.parse_args()
    for area in areas():
        name = area_name(area)
        if options.areas and name not in options.areas:
            continue
        theirs = ask(area, TritonProcess)
        if not options.compare:
            RECORDED.mkdir(exist_ok=True)
            lines = [f"{json.dumps(question)}: {json.dumps(theirs[question])}" for question in sorted(theirs)]
            (RECORDED / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
            print(f"{name}: {len(theirs)} answers recorded")
            continue
        ours = ask(area, ServerProcess, "--allow-client-shm=true")
        found = different(ours, theirs, area.OTHERWISE)
        for question, answer in found.items():
            print(f"{name}, {question}:")
            print(f"  Triton:  {json.dumps(theirs[question])[:1500]}\n  Trident: {json.dumps(answer)[:1500]}")
        print(f"{name}: {len(found)} of {len(theirs)} answers differ; {len(area.OTHERWISE)} do on purpose")


if __name__ == "__main__":
    main()
