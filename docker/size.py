"""The sizes of the images and their budgets.

    python docker/size.py                      adds up docker/sizes.json; status 1 if something is over its budget
    python docker/size.py --measure            rewrites that file: installs the packages of the lock files into a
                                               temporary folder, as the images do (6 GB of downloads, 10 GB of disk)
    python docker/size.py --measure cpu-torch  rewrites only this part
    python docker/size.py --compressed cpu     prints what each distribution takes in a registry

Sizes are bytes of files, as an engine counts an image; the base image counts as an allowance. An extra counts with what
it adds to its stage.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, distributions
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from leave_out import leave_out
from lock import ROOT, lock_file, normalized, read_pins, stage_and_extra

SIZES = ROOT / "docker" / "sizes.json"
# Of the images, and of what each extra adds to them.
BUDGETS = {
    "cpu": 450_000_000,
    "gpu": 3_000_000_000,
    "gpu12": 3_000_000_000,
    "openvino": 150_000_000,
    "tensorflow": 1_200_000_000,
    "azure": 40_000_000,
    "text": 60_000_000,
    "trees": 130_000_000,
    "cpu-genai": 80_000_000,
    "cpu-torch": 750_000_000,
    "gpu-genai": 90_000_000,
    "gpu-torch": 3_000_000_000,
}
# python:3.11-slim-bookworm, rounded up. docker/check.sh measures the files that the build adds to its base.
BASE_ALLOWANCE = 140_000_000

# The project's extension modules, rounded up.
EXTENSIONS_ALLOWANCE = 10_000_000
# The files of tools/ that the images have.
TOOLS = re.compile(r"tools/\w+\.py")

# By distribution, as name==version: the bytes that stay and the bytes that are left out.
Sizes = dict[str, tuple[int, int]]


def read_sizes() -> dict[str, Sizes]:
    return {
        target: {pin: (kept, left_out) for pin, (kept, left_out) in sizes.items()}
        for target, sizes in json.loads(SIZES.read_text()).items()
    }


def write_sizes(sizes: dict[str, Sizes]) -> None:
    """Write one line per distribution, so that a diff shows which changed."""
    images = []
    for target, of_target in sizes.items():
        lines = ",\n".join(f"  {json.dumps(pin)}: [{kept}, {left}]" for pin, (kept, left) in sorted(of_target.items()))
        images.append(f" {json.dumps(target)}: {{\n{lines}\n }}")
    SIZES.write_text("{\n" + ",\n".join(images) + "\n}\n")


def project_size() -> int:
    """The size of the project: its sources, the same amount for their bytecode, and its extension modules."""
    paths = [path for package in ("app", "adapters", "core") for path in (ROOT / package).rglob("*.py")]
    paths += [ROOT / name for name in TOOLS.findall((ROOT / "docker" / "Dockerfile").read_text())]
    return EXTENSIONS_ALLOWANCE + 2 * sum(path.stat().st_size for path in paths)


def image_size(sizes: Sizes) -> int:
    return BASE_ALLOWANCE + project_size() + sum(kept for kept, _ in sizes.values())


def counted(target: str, all_sizes: dict[str, Sizes]) -> int:
    """The size that the budget of `target` limits: that of an image, or the growth by an extra."""
    stage, extra = stage_and_extra(target)
    sizes = all_sizes[target]
    if not extra:
        return image_size(sizes)
    names = {pin.partition("==")[0] for pin in sizes}
    replaced = sum(kept for pin, (kept, _) in all_sizes.get(stage, {}).items() if pin.partition("==")[0] in names)
    return sum(kept for kept, _ in sizes.values()) - replaced


def report(target: str, all_sizes: dict[str, Sizes]) -> list[str]:
    """A report for a person, the largest packages first."""
    sizes = all_sizes[target]
    rows = sorted(sizes.items(), key=lambda row: -row[1][0])
    lines = [f"{pin:40} {_mb(kept)}   left out {_mb(left_out)}" for pin, (kept, left_out) in rows[:12]]
    rest = sum(kept for _, (kept, _) in rows[12:])
    if stage_and_extra(target)[1]:
        lines.append(f"{'others':40} {_mb(rest)}")
    else:
        lines.append(f"{'others, including the project':40} {_mb(rest + project_size())}")
        lines.append(f"{'base image':40} {_mb(BASE_ALLOWANCE)}")
    left_out = sum(left_out for _, left_out in sizes.values())
    total = f"{_mb(counted(target, all_sizes))} of {_mb(BUDGETS[target])}, {_mb(left_out)} left out"
    return [f"{target}:", *lines, total, ""]


@contextmanager
def installation(target: str) -> Iterator[tuple[dict[str, list[Path]], dict[Path, int]]]:
    """Yield the files by distribution of an installation like that of the image's build stage, some of which were left
    out then, and the size of each before. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        venv = Path(folder, "venv")
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps"]
        pip += ["--no-build-isolation", "--require-hashes"]
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        for each in ("build", target):
            subprocess.run([*pip, "-r", str(lock_file(each))], check=True)
        (site_packages,) = venv.glob("lib/python3*/site-packages")
        found = {normalized(each.metadata["Name"]): each for each in distributions(path=[str(site_packages)])}
        files = {name: list(_files(found[name])) for name in read_pins(lock_file(target))}
        sizes = {path: path.stat().st_size for paths in files.values() for path in paths}
        leave_out(site_packages)
        subprocess.run(
            [str(venv / "bin" / "python"), "-m", "compileall", "-q", "-j", "0", str(site_packages)], check=True
        )
        yield files, sizes


def measure(target: str) -> Sizes:
    """Measure an installation. Raises CalledProcessError."""
    pinned = read_pins(lock_file(target))
    result: Sizes = {}
    with installation(target) as (files, sizes):
        for name, paths in files.items():
            kept = [path for path in paths if path.exists()]
            compiled = sum(each.stat().st_size for each in _compiled(kept))
            left_out = sum(sizes[path] for path in paths if not path.exists())
            result[f"{name}=={pinned[name]}"] = (sum(sizes[path] for path in kept) + compiled, left_out)
    return result


def compressed(target: str) -> dict[str, int]:
    """The bytes of each distribution in a layer as a registry stores it, by gzip. Raises CalledProcessError."""
    result = {}
    with installation(target) as (files, _):
        for name, paths in files.items():
            kept = [path for path in paths if path.exists()]
            layer = io.BytesIO()
            with tarfile.open(fileobj=layer, mode="w:gz", compresslevel=6) as archive:
                for path in sorted([*kept, *_compiled(kept)]):
                    archive.add(path)
            result[name] = layer.tell()
    return result


def _files(distribution: Distribution) -> Iterable[Path]:
    for each in distribution.files or []:
        path = Path(str(distribution.locate_file(each)))
        if path.is_file():
            yield path


def _compiled(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if path.suffix == ".py":
            yield from (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")


def _mb(size: int) -> str:
    return f"{size / 1e6:8.1f} MB"


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--measure"] and set(arguments[1:]) <= BUDGETS.keys():
        measured = {target: measure(target) for target in arguments[1:] or BUDGETS}
        known = {target: sizes for target, sizes in read_sizes().items() if target in BUDGETS}
        write_sizes(dict(sorted((known | measured).items())))
    elif arguments[:1] == ["--compressed"] and len(arguments) == 2 and arguments[1] in BUDGETS:
        found = compressed(arguments[1])
        for name, size in sorted(found.items(), key=lambda item: -item[1]):
            print(f"{_mb(size)}  {name}")
        print(f"{_mb(sum(found.values()))}  together, without the base image and the project")
        return 0
    elif arguments:
        print(__doc__, file=sys.stderr)
        return 1
    all_sizes = read_sizes()
    for target in all_sizes:
        print("\n".join(report(target, all_sizes)))
    over = [target for target in all_sizes if counted(target, all_sizes) > BUDGETS[target]]
    for target in over:
        print(f"the {target} image is over its budget", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
