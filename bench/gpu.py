"""Measures on a bare machine with a GPU, rented for minutes: it brings everything, and one command does the rest.

    python -m bench.gpu pack FOLDER         the packages that a bare machine needs, in pieces for small transfers
    python -m bench.gpu unpack FOLDER       joins and checks the pieces, and makes the environment FOLDER/venv
    FOLDER/venv/bin/python -m bench.gpu run [--device=cpu] [--seconds=3]

This module imports only the standard library: `unpack` runs before anything is installed. The measurements are in
`bench.gpu_parts`. `--device=cpu` runs the same code with smaller graphs: it shows that all works before one is rented.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIECE_BYTES = 55 << 20
MANIFEST = "manifest.json"
LOCK = ROOT / "docker" / "requirements-gpu.lock"
# Needed by the tests and the benchmark besides; their versions are those of requirements.lock.
MORE = ("hypothesis", "onnx", "pytest", "tritonclient[grpc,http]")
GLIBC_MINORS = range(17, 36)


class Damaged(Exception):
    """A piece or a file is missing or is not what was packed."""


def split(files: Iterable[Path], folder: Path, piece_bytes: int = PIECE_BYTES) -> int:
    """Write the files one after another into pieces of a size, and the manifest. Returns the number of pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    entries, pieces, room = [], 0, 0
    output = None
    for file in files:
        content = file.read_bytes()
        entries.append({"name": file.name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()})
        rest = memoryview(content)
        while rest:
            if output is None or not room:
                if output is not None:
                    output.close()
                output = (folder / _piece(pieces)).open("wb")
                pieces, room = pieces + 1, piece_bytes
            output.write(rest[:room])
            room, rest = room - len(rest[:room]), rest[room:]
    if output is not None:
        output.close()
    (folder / MANIFEST).write_text(json.dumps({"pieces": pieces, "files": entries}, indent=1) + "\n")
    return pieces


def join(folder: Path, target: Path) -> list[Path]:
    """Write the files that were split into `folder`. Damaged if a piece is missing or a file differs."""
    manifest = json.loads((folder / MANIFEST).read_text())
    pieces = [folder / _piece(number) for number in range(manifest["pieces"])]
    if missing := [piece.name for piece in pieces if not piece.exists()]:
        raise Damaged(f"{folder} lacks {', '.join(missing)}")
    target.mkdir(parents=True, exist_ok=True)
    content = (piece.read_bytes() for piece in pieces)
    rest = b""
    made = []
    for entry in manifest["files"]:
        while len(rest) < entry["size"] and (more := next(content, b"")):
            rest += more
        file, rest = rest[: entry["size"]], rest[entry["size"] :]
        if hashlib.sha256(file).hexdigest() != entry["sha256"]:
            raise Damaged(f"{entry['name']} is not what was packed")
        made.append(target / entry["name"])
        made[-1].write_bytes(file)
    return made


def _piece(number: int) -> str:
    return f"piece-{number:03}"


def pack(folder: Path, python: str, leave_out: list[str]) -> None:
    """Download the packages for x86-64 and split them."""
    with tempfile.TemporaryDirectory() as temporary:
        wheels = Path(temporary)
        wanted = [pin for pin in _pins() if not any(pin.startswith(name) for name in leave_out)]
        platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in reversed(GLIBC_MINORS)]
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--only-binary=:all:",
            f"--python-version={python}",
        ]
        command += ["--implementation=cp", *platforms, "--platform=manylinux2014_x86_64", f"--dest={wheels}"]
        subprocess.run([*command, f"--constraint={ROOT / 'requirements.lock'}", *wanted, *MORE], check=True)
        files = sorted(wheels.glob("*.whl"))
        pieces = split(files, folder)
    print(f"{len(files)} files in {pieces} pieces: {folder}")


def _pins() -> Iterator[str]:
    return (line.split()[0] for line in LOCK.read_text().splitlines() if re.match(r"[\w.-]+==", line))


def unpack(folder: Path) -> None:
    """Join the pieces and install them. What was left out is taken from the interpreter that runs this."""
    files = join(folder, folder / "files")
    environment = folder / "venv"
    venv.create(environment, clear=True, symlinks=True)
    python = environment / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps"]
    command += ["--quiet", "--no-compile"]
    subprocess.run([*command, *(str(file) for file in files if file.suffix == ".whl")], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    there = Path(sysconfig.get_path("purelib"))
    (packages / "beside.pth").write_text(f"{there}\n")
    if not (packages / "nvidia").exists():
        # ONNX Runtime looks for CUDA beside itself alone.
        (packages / "nvidia").symlink_to(there / "nvidia")
    print(f"Measure with: {python} -m bench.gpu run")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="Measure on a bare machine with a GPU.")
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="download what a bare machine needs, and split it into pieces")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--python", default="3.11", help="version of that machine's Python")
    packing.add_argument(
        "--leave-out", type=lambda text: text.split(","), default=[], help="packages there already: starts of names"
    )
    commands.add_parser("unpack", help="join, check and install the pieces").add_argument("folder", type=Path)
    running = commands.add_parser("run", help="measure, and print one page")
    running.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    running.add_argument("--seconds", type=float, default=3.0, help="for each way to run a model at each batch size")
    running.add_argument("--limit", type=float, default=570.0, help="seconds for everything")
    running.add_argument("--only", type=lambda text: text.split(","), help="some of the parts, separated by commas")
    running.add_argument("--results", type=Path, help="folder of the two result files")
    looping = commands.add_parser("loop")  # what `run` starts
    for name in ("graph", "feeds", "provider", "binding", "count"):
        looping.add_argument(name)
    options = parser.parse_args()
    if options.command == "pack":
        pack(options.folder, options.python, options.leave_out)
    elif options.command == "unpack":
        unpack(options.folder)
    elif options.command == "loop":
        from bench.gpu_parts import loop

        loop(Path(options.graph), Path(options.feeds), options.provider, bool(options.binding), Path(options.count))
    else:
        from bench.gpu_parts import run

        run(options)


if __name__ == "__main__":
    main()
