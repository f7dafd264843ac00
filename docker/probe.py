"""Tests a built image in its three roles, for docker/check.sh.

    probe.py ROOT IMAGE_JSON CONTAINER STAGE EXTRAS -- BUILDAH RUN...

ROOT is the mounted file system of the container CONTAINER; IMAGE_JSON is the output of `buildah inspect` for its image,
which was built with EXTRAS. A tiny model of each extra is served, too.
The remaining words, followed by the container's name and a command, run the command in it. As in an engine, the process
consists of the image's entrypoint, command, environment, user and folder. The first failure ends the test with status 1
and the reason.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from lock import ALWAYS
from roles import Mount, Role, Wrong, call, expect, roles
from size import BASE_ALLOWANCE, BUDGETS, counted, read_sizes

from tests.contract.frameworks.framework_models import WIDTH, framework_models
from tests.gpu_options.stub_libraries import make_stub_libraries

SEVEN = 7
ROWS = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
# Imports every module of the project and the clients of the cloud storages: none may miss a file that was left out.
# Of those that need an extra, those whose extra is in the image. What is in a folder `stub` or `stub_models` runs in
# the process of a model, with paths of its own.
IMPORT_ALL = """
import importlib, pkgutil, sys
import boto3, opentelemetry.exporter.otlp.proto.http, opentelemetry.sdk, redis
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
import trident
from trident.core.backends.registry import BUILT_IN
names = [each.name for each in pkgutil.walk_packages(trident.__path__, "trident.") if ".stub" not in each.name]
of_extras = {"trident.core.repository.stores.azure": "azure", "trident.testing": "test"}
extras = {"cpu", *sys.argv[1].split(",")}
for name in names:
    backend = BUILT_IN.get(name.split(".")[3]) if name.startswith("trident.core.backends.") else None
    extra = backend.extra if backend else of_extras.get(name, "cpu")
    if not name.endswith("__main__") and extra in extras:
        importlib.import_module(name)
for service in ("s3", "sts", "sso", "sso-oidc"):
    boto3.client(service, region_name="us-east-1")
storage.Client(project="none", credentials=AnonymousCredentials())
print(len(names), "modules")
"""
# Begins to start CUDA's provider, as a session of the server does.
START_CUDA = """
import trident
import onnxruntime
onnxruntime.preload_dlls()
model = "/models/simple/1/model.onnx"
onnxruntime.InferenceSession(model, providers=["CUDAExecutionProvider"], enable_fallback=False)
"""
START_LIMIT_S = 120.0
# A platform kills 30 s after SIGTERM.
STOP_LIMIT_S = 30.0


class Image:
    """The configuration of an image, as an engine reads it."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        config = described["Docker"]["config"]
        self.entrypoint: list[str] = config["Entrypoint"]
        self.command: list[str] = config["Cmd"]
        self.environment: list[str] = config["Env"]
        self.user: str = config["User"]
        self.folder: str = config["WorkingDir"]
        self.labels: dict[str, str] = config["Labels"]
        self.ports: set[str] = set(config["ExposedPorts"])
        self.health: list[str] = config["Healthcheck"]["Test"]

    def process(self, arguments: Sequence[str]) -> list[str]:
        """The command of `docker run IMAGE ARGUMENTS`."""
        return [*self.entrypoint, *(arguments or self.command)]


class Container:
    """Runs commands of an image with `buildah run`, which applies its environment, user and folder."""

    def __init__(self, run: Sequence[str], name: str) -> None:
        self._run = list(run)
        self._name = name

    def command(self, role: Role, process: Sequence[str], user: str = "") -> list[str]:
        variables = [word for name, value in role.environment.items() for word in ("--env", f"{name}={value}")]
        mounts = [word for each in role.mounts for word in ("--volume", f"{each.source}:{each.target}:ro")]
        as_user = ["--user", user] if user else []
        return [*self._run, *as_user, *variables, *mounts, self._name, "--", *process]


def first_process_command(root: Path, image: Image, role: Role) -> list[str]:
    """A command that runs the image in its own namespaces, where the server is process 1."""
    for each in role.mounts:
        (root / each.target.lstrip("/")).mkdir(parents=True, exist_ok=True)
    mounts = [f"mount --bind {each.source} {root}{each.target}" for each in role.mounts]
    steps = ["[ $$ = 1 ] || exit 97", f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev", *mounts]
    script = " && ".join([*(f"{{ {step}; }}" for step in steps), 'exec "$@"'])
    variables = [*image.environment, *(f"{name}={value}" for name, value in role.environment.items())]
    enter = ["chroot", f"--userspec={image.user}", "--groups=", str(root), "env", "-i", "-C", image.folder, *variables]
    inside = ["sh", "-c", script, "sh", *enter, *image.process(role.arguments)]
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", *inside]


@contextlib.contextmanager
def started(role: Role, command: Sequence[str]) -> Iterator[int]:
    """Run the server until it is ready and yield its pid on this machine. On exit it must stop with status 0."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_until_ready(role, process)
            pid = server_process(process.pid)
            yield pid
            os.kill(pid, signal.SIGTERM)
            status = process.wait(STOP_LIMIT_S)
            expect(status == 0, f"status {status} after SIGTERM")
            expect(call_fails(role), "the port is still open after the server stopped")
        except (Wrong, subprocess.TimeoutExpired, OSError) as error:
            log.seek(0)
            raise Wrong(f"{error}\n{log.read().decode(errors='replace')[-4000:]}") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_ready(role: Role, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        expect(process.poll() is None, f"ended with status {process.returncode} before it was ready")
        with contextlib.suppress(OSError, http.client.HTTPException):
            if call(role.port, "GET", role.health)[0] == 200:
                return
        time.sleep(0.1)
    raise Wrong(f"not ready after {START_LIMIT_S} s")


def call_fails(role: Role) -> bool:
    try:
        call(role.port, "GET", role.health)
    except OSError:
        return True
    return False


def server_process(ancestor: int) -> int:
    """The first process below `ancestor` that is the interpreter with the entrypoint's script. Raises Wrong."""
    level = [ancestor]
    while level:
        for pid in level:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[:2] == [b"/opt/trident/bin/python", b"/opt/trident/bin/trident"]:
                return pid
        level = [child for pid in level for child in children(pid)]
    raise Wrong("no server process was found")


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def user_of(pid: int) -> int:
    return os.stat(f"/proc/{pid}").st_uid


def check_description(image: Image) -> None:
    capabilities = "com.amazonaws.sagemaker.capabilities."
    for label in ("multi-models", "accept-bind-to-port", "bidirectional-streaming"):
        expect(image.labels.get(capabilities + label) == "true", f"label {label}")
    expect({"8000/tcp", "8001/tcp", "8002/tcp", "8080/tcp"} <= image.ports, f"ports {sorted(image.ports)}")
    expect(image.user == "1000:1000", f"user {image.user}")
    expect(image.health[:1] == ["CMD"], f"health {image.health}")


def check_files(root: Path, stage: str, extras: Sequence[str]) -> None:
    """Check that all users can read the files, only root can write them, and the size is within the budget."""
    venv = root / "opt" / "trident"
    size = 0
    for path in venv.rglob("*"):
        if path.is_symlink():
            continue
        mode = path.lstat().st_mode
        wanted = 0o555 if path.is_dir() else 0o444
        expect(mode & wanted == wanted, f"not readable by all: {path}")
        expect(not mode & 0o022 and path.lstat().st_uid == 0, f"writable by users other than root: {path}")
        size += 0 if path.is_dir() else path.lstat().st_size
    check_bytecode(venv)
    listed = {each["name"] for each in json.loads((venv / "components.cdx.json").read_text())["components"]}
    expect({"numpy", "python", "dpkg"} <= listed and not {"pip", "setuptools"} & listed, f"the components are {listed}")
    for absent in ("usr/bin/gcc", "opt/trident/bin/pip", "usr/local/bin/pip", "build"):
        expect(not (root / absent).exists(), f"/{absent} is in the image")
    targets = [stage, *(extra if extra in BUDGETS else f"{stage}-{extra}" for extra in extras)]
    estimate = sum(counted(target, read_sizes()) for target in targets) - BASE_ALLOWANCE
    print(f"   /opt/trident: {size / 1e6:.1f} MB; estimated from docker/sizes.json: {estimate / 1e6:.1f} MB")
    expect(abs(size - estimate) < 0.05 * estimate, "docker/sizes.json is outdated: run docker/size.py --measure")
    expect(BASE_ALLOWANCE + size < sum(BUDGETS[target] for target in targets), "over the budget")


def check_libraries(root: Path) -> None:
    """Check that what ONNX Runtime's providers link is in the image; the driver's libraries are the host's."""
    names = {path.name for folder in ("lib", "usr/lib", "opt/trident") for path in (root / folder).rglob("*.so*")}
    for provider in sorted((root / "opt/trident").rglob("libonnxruntime_providers_*.so")):
        table = subprocess.run(["readelf", "-d", str(provider)], check=True, capture_output=True, text=True).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(\S+)\]", table))
        missing = sorted(needed - names - {"libcuda.so.1"})
        expect(not missing, f"{provider.name} needs {missing}, which are not in the image")
        print(f"   {provider.name}: its {len(needed)} libraries are there")


def check_linking(root: Path, container: Container) -> None:
    """Check that CUDA's provider finds each symbol in the image's libraries, up to its first call of the driver."""
    (provider,) = (root / "opt/trident").rglob("libonnxruntime_providers_cuda.so")
    with tempfile.TemporaryDirectory() as folder:
        make_stub_libraries([provider], Path(folder))
        for path in Path(folder).iterdir():
            if path.name != "libcuda.so.1":
                path.unlink()
        Path(folder).chmod(0o755)
        plain = roles()[0]
        environment = {"LD_LIBRARY_PATH": "/driver", "LD_BIND_NOW": "1"}
        role = replace(plain, environment=environment, mounts=[*plain.mounts, Mount(Path(folder), "/driver")])
        expect_end(container.command(role, ["python", "-c", START_CUDA]), 1, "CUDA failure 35")
    print("   CUDA's provider is linked, and then finds no driver")


def check_bytecode(venv: Path) -> None:
    """Check that every module is there as bytecode: the server's user cannot write it, and a start would make it."""
    (packages,) = venv.glob("lib/python3*/site-packages")
    missing = [
        path for path in packages.rglob("*.py") if not any((path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"))
    ]
    expect(not missing, f"{len(missing)} modules without bytecode, such as {missing[:1]}")


def check_roles(container: Container, image: Image) -> None:
    # A user unknown to the image, as in some clusters; the user that the image names; root.
    for role, user in zip(roles(), ("12345:0", "", "0:0"), strict=True):
        uid = int((user or image.user).partition(":")[0])
        with started(role, container.command(role, image.process(role.arguments), user)) as pid:
            expect(user_of(pid) == uid, f"runs as user {user_of(pid)}")
            expect(role.ask(role) == SEVEN, "the image of a seven is not classified as a seven")
            subprocess.run(container.command(role, [*image.health[1:], str(pid)], user), check=True)
        print(f"   {role.name}, as user {uid}: ready, answers, is healthy, stops")


def check_first_process(root: Path, image: Image) -> None:
    for workers in ("0", "2"):
        plain = roles()[0]
        role = replace(plain, environment={**plain.environment, "TRIDENT_HTTP_WORKERS": workers})
        with started(role, first_process_command(root, image, role)) as pid:
            expect(user_of(pid) == 1000, f"runs as user {user_of(pid)}")
            expect(role.ask(role) == SEVEN, "the image of a seven is not classified as a seven")
        print(f"   process 1 with --http-workers={workers}: answers, stops at SIGTERM")


def check_frameworks(container: Container, image: Image, extras: Sequence[str]) -> None:
    """Check that a tiny model of each extra answers as its framework does on this machine."""
    wanted = [model for model in framework_models().values() if model.extra in extras]
    missing = set(extras) - {model.extra for model in wanted}
    expect(not missing, f"on this machine there is no framework of {sorted(missing)} to write a model with")
    with tempfile.TemporaryDirectory() as folder:
        for model in wanted:
            model.write_to(Path(folder))
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        plain = roles()[0]
        role = replace(plain, mounts=[Mount(Path(folder), "/models")])
        with started(role, container.command(role, image.process(role.arguments))):
            for model in wanted:
                status, body = call(role.port, "POST", f"/v2/models/{model.name}/infer", model.v2_request(ROWS))
                expect(status == 200, f"{model.name}: {status} {body!r}")
                (answer,) = [output["data"] for output in json.loads(body)["outputs"]]
                expected = model.expected(ROWS).ravel()
                expect(bool(np.allclose(answer, expected, rtol=1e-5, atol=1e-6)), f"{model.name}: {answer}")
                print(f"   {model.name} of the extra {model.extra} answers")


def check_commands(container: Container, image: Image, extras: Sequence[str]) -> None:
    """Check other commands, and the error of a start without a model repository."""
    plain = roles()[0]
    nothing = replace(plain, environment={})
    for role, arguments, status, text in (
        (plain, ["--version"], 0, f"trident {image.labels['org.opencontainers.image.version']} (compiled)\n"),
        (plain, ["validate", "/models"], 0, ""),
        (plain, ["bench", "simple"], 1, "error: `trident bench` is not part of this image"),
        (nothing, [], 1, "--model-repository must be specified"),
    ):
        process = image.process(arguments)
        expect_end(container.command(role, process), status, text)
        print(f"   {' '.join(process)}: status {status}")
    expect_end(container.command(nothing, ["python", "-c", IMPORT_ALL, ",".join(extras)]), 0, " modules")
    print("   all modules and the clients of the storages can be imported")


def expect_end(command: Sequence[str], status: int, text: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_LIMIT_S, check=False)
    output = done.stdout + done.stderr
    expect(done.returncode == status and text in output, f"{command}: status {done.returncode}, {output}")


def main(arguments: list[str]) -> int:
    root, described, container, stage, given, separator, *run = arguments
    expect(separator == "--", "usage: probe.py ROOT IMAGE_JSON CONTAINER STAGE EXTRAS -- BUILDAH RUN...")
    extras = [extra for extra in given.split(",") if extra and extra not in ALWAYS]
    image = Image(json.loads(Path(described).read_text()))
    inside = Container(run, container)
    try:
        check_description(image)
        check_files(Path(root), stage, extras)
        check_libraries(Path(root))
        if stage != "cpu":
            check_linking(Path(root), inside)
        check_commands(inside, image, extras)
        check_roles(inside, image)
        check_first_process(Path(root), image)
        check_frameworks(inside, image, extras)
    except (Wrong, subprocess.SubprocessError) as error:
        print(f"image-check: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
