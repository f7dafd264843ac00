"""`trident doctor`: its report, this machine (GPUs, limits, ports), the answers of a server that runs, model
repositories, and the cloud storages that have them."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from trident.app.cli import main
from trident.app.process.files import IN_MEMORY
from trident.app.settings.reading import read_settings
from trident.app.settings.server import ServerSettings, Service
from trident.app.supervisor.start import Topology
from trident.core.backends.registry import DeviceSupport, ProviderState
from trident.core.errors import NotInstalled
from trident.core.observability.hardware import DriverReading, MemoryState
from trident.core.repository.location import parse_location
from trident.core.repository.sources import SourceFile
from trident.core.repository.stores.object_store import RegionOrigin, StorageAccess
from trident.tools.ask import Answer, NoAnswer
from trident.tools.doctor import (
    GpuReading,
    LimitReading,
    PortReading,
    gpu_lines,
    limit_lines,
    port_lines,
    read_limits,
    read_ports,
    server_lines,
    text_report,
)
from trident.tools.doctor_repositories import (
    CallReading,
    Line,
    RepositoryReading,
    Severity,
    StorageReading,
    file_lines,
    proxy_of,
    read_repository,
    repository_lines,
    room_lines,
    s3_statement,
    storage_lines,
)

# --- the command and its report

ONE_PORT = ["--http-address=127.0.0.1", "--allow-metrics=false", "--allow-grpc=false"]


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def free_port() -> list[str]:
    """Options for a server with one free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return [*ONE_PORT, f"--http-port={listener.getsockname()[1]}"]


def test_every_repository_has_its_own_lines(
    shipped_models: Path, tmp_path: Path, free_port: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(shipped_models), *free_port]) == 0
    page = capsys.readouterr().out
    assert f"Repository {shipped_models}\n" in page
    assert "every model would load" in page
    assert page.splitlines()[-1].endswith("ready to serve")
    assert main(["doctor", str(shipped_models), str(tmp_path / "missing"), "ftp://host/x", *free_port]) == 1
    page = capsys.readouterr().out
    assert "every model would load" in page
    assert f"Repository {tmp_path / 'missing'}\n  FAILED   models" in page
    assert "unknown storage ftp://" in page


def test_machine_is_checked_without_a_repository_and_failure_has_status_1(
    taken: int, free_port: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *free_port]) == 0
    assert capsys.readouterr().out.startswith("Limits\n")
    assert main(["doctor", "--json", *ONE_PORT, f"--http-port={taken}"]) == 1
    report = json.loads(capsys.readouterr().out)
    (failed,) = [line for line in report["lines"] if line["level"] == "failed"]
    assert (report["failed"], failed["area"], failed["check"]) == (1, "Ports", "HTTP")
    assert main(["doctor", "--jsn"]) == 1
    assert "unknown option" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("tensorrt") is not None, reason="TensorRT is installed")
def test_only_frameworks_of_the_models_are_required(
    shipped_models: Path, tmp_path: Path, free_port: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(shipped_models, tmp_path / "models")
    (tmp_path / "models" / "plan" / "1").mkdir(parents=True)
    (tmp_path / "models" / "plan" / "1" / "model.plan").write_bytes(b"plan")
    for repository, missing in ((shipped_models, []), (tmp_path / "models", ["backend tensorrt"])):
        main(["doctor", "--json", str(repository), *free_port])
        lines = [Line(**each) for each in json.loads(capsys.readouterr().out)["lines"]]
        backends = {each.check: each for each in lines if each.check.startswith("backend ")}
        assert {check: line.level for check, line in backends.items()} == {
            "backend onnxruntime": Severity.OK,
            **dict.fromkeys(missing, Severity.FAILED),
        }
        assert all("pip install '.[tensorrt]'" in backends[check].cure for check in missing)


LINES = [
    Line("Limits", "CPU", Severity.OK, "2 cores"),
    Line("Limits", "open files", Severity.WARNING, "256", "raise it"),
    Line("Ports", "HTTP", Severity.FAILED, "taken\x1b[2J by " + "word " * 30, "cure " * 30),
]


def test_page_has_a_block_for_each_area_and_ends_with_the_result() -> None:
    assert text_report(LINES[:2]) == (
        "Limits\n"
        "  ok       CPU         2 cores\n"
        "  warning  open files  256\n"
        "                       cure: raise it\n"
        "\n"
        "0 failed, 1 warning: ready to serve\n"
    )
    page = text_report(LINES)
    assert page.endswith("\n1 failed, 1 warning: this machine cannot serve this as it is\n")
    assert max(map(len, page.splitlines())) <= 100
    assert "  FAILED   HTTP  taken\\u001b[2J by word" in page


# --- GPUs

CUDA = "CUDAExecutionProvider"
DRIVER = DriverReading("550.54.15", "12.4", (80 << 30,))
NO_DRIVER = "libnvidia-ml.so.1: cannot open shared object file"
LOADS = ProviderState(CUDA, True)
BROKEN = ProviderState(CUDA, True, "libcublas.so.12: cannot open shared object file", "install [gpu]")
ABSENT = ProviderState(CUDA, False, cure="install [gpu]")


def of_gpus(driver: DriverReading | str, gpus: int, state: ProviderState, *asked_by: str) -> dict[str, Line]:
    support = {"fast": DeviceSupport("Fast 1.0", [state])}
    return {line.check: line for line in gpu_lines(GpuReading(driver, range(gpus), support), asked_by)}


def test_gpu_is_shown_with_its_versions_and_a_missing_one_is_ok() -> None:
    found = of_gpus(DRIVER, 1, LOADS)
    assert {line.level for line in found.values()} == {Severity.OK}
    assert found["driver"].text == "550.54.15, CUDA up to 12.4, 1 GPU (80 GiB)"
    assert (found["backend fast"].text, found[CUDA].text) == ("Fast 1.0", "its libraries load")
    assert {line.level for line in of_gpus(NO_DRIVER, 0, ABSENT).values()} == {Severity.OK}
    (_, missing) = gpu_lines(GpuReading(DRIVER, (0,), {"fast": NotInstalled("no fast", hint="install it")}), ())
    assert missing == Line("GPU", "backend fast", Severity.FAILED, "no fast", "install it")


@pytest.mark.parametrize(
    ("driver", "gpus", "state", "asked_by", "check", "level", "text"),
    [
        (NO_DRIVER, 0, ABSENT, ["resnet"], "driver", Severity.FAILED, "; asked for by resnet"),
        (NO_DRIVER, 0, ABSENT, [f"m{n}" for n in range(7)], "driver", Severity.FAILED, "m0, m1, m2, m3, m4 and 2 more"),
        (DRIVER, 0, LOADS, [], "driver", Severity.WARNING, "that can be used"),
        (NO_DRIVER, 2, LOADS, [], "driver", Severity.WARNING, "their state cannot be read"),
        (DRIVER, 1, BROKEN, [], CUDA, Severity.FAILED, "libcublas.so.12"),
        (DRIVER, 0, BROKEN, [], CUDA, Severity.WARNING, "cannot be used"),
        (DRIVER, 0, BROKEN, ["m"], CUDA, Severity.FAILED, "cannot be used"),
        (DRIVER, 1, ABSENT, [], CUDA, Severity.WARNING, "models run on the CPU"),
        (DRIVER, 1, ABSENT, ["m"], CUDA, Severity.FAILED, "asked for by m"),
        (DRIVER, 1, ProviderState("OpenVINO", False), ["m"], "OpenVINO", Severity.OK, "optional"),
    ],
)
def test_missing_gpu_or_provider_fails_only_if_a_model_needs_it(
    driver: Any, gpus: int, state: ProviderState, asked_by: list[str], check: str, level: Severity, text: str
) -> None:
    line = of_gpus(driver, gpus, state, *asked_by)[check]
    assert (line.level, text in line.text) == (level, True)
    assert bool(line.cure) is (level is not Severity.OK)


# --- limits

GIB = 1 << 30
READING = LimitReading(
    cores=4.0,
    affinity=4,
    room=MemoryState(8 * GIB, 6 * GIB),
    open_files=65536,
    temporary="/tmp",
    in_memory_bytes=64 << 20,
    topology=Topology(2, "set by --http-workers"),
    worker_bytes=GIB,
)
ALONE = Topology(0, "few cores")


def test_good_limits_are_ok_and_this_machines_are_read() -> None:
    lines = list(limit_lines(READING, 1))
    assert {each.level for each in lines} == {Severity.OK}
    assert [each.check for each in lines] == ["CPU", "memory", "processes", "temporary files", "open files"]
    reading = read_limits(read_settings(["--model-repository=/m", "--http-workers=3"], {}))
    assert reading.topology.http_workers == 3
    assert 0 < reading.cores <= reading.affinity
    assert reading.open_files != 0


@pytest.mark.parametrize(
    ("changes", "check", "level", "text"),
    [
        ({}, "CPU", Severity.OK, "each of 3 sessions gets 2 threads"),
        ({"cores": 2.0, "affinity": 16}, "CPU", Severity.OK, "2 cores (a quota; 16 are visible)"),
        ({"cores": 0.5}, "CPU", Severity.WARNING, "0.5 cores"),
        ({"room": None}, "memory", Severity.WARNING, "does not tell"),
        ({}, "processes", Severity.OK, "share up to 2 GiB"),
        ({"worker_bytes": 4 * GIB}, "processes", Severity.WARNING, "share up to 8 GiB"),
        ({"topology": ALONE, "worker_bytes": 99 * GIB}, "processes", Severity.OK, "all in one process: few cores"),
        ({"temporary": IN_MEMORY}, "temporary files", Severity.WARNING, "in memory, in /dev/shm, which has 64 MiB"),
        ({"temporary": ""}, "temporary files", Severity.FAILED, "no folder"),
        ({"open_files": 1024}, "open files", Severity.WARNING, "1024, which allows 512 connections"),
        ({"open_files": resource.RLIM_INFINITY}, "open files", Severity.OK, "unlimited, "),
    ],
)
def test_tight_limits_are_reported(changes: dict[str, Any], check: str, level: Severity, text: str) -> None:
    (line,) = [each for each in limit_lines(replace(READING, **changes), 3) if each.check == check]
    assert (line.level, text in line.text) == (level, True)


# --- ports


def test_port_owners_are_read_and_free_ports_stay_free(taken: int) -> None:
    # The server on the HTTP port would be asked for its name.
    (reading,) = read_ports({"metrics": Service("127.0.0.1", taken, "--metrics-port", "Metrics Service", False)})
    assert reading.failure == f"Socket '127.0.0.1:{taken}' already in use"
    assert reading.owner.endswith(f"(pid {os.getpid()})")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    service = Service("127.0.0.1", port, "--metrics-port", "Metrics Service", False)
    for _ in range(2):
        assert read_ports({"metrics": service}) == [PortReading("metrics", "127.0.0.1", port, option=service.option)]


def test_a_running_server_is_recognised_with_a_warning() -> None:
    owner = ("trident serve models (pid 9)", "triton 0.1.0", "--http-port")
    (line,) = port_lines([PortReading("HTTP", "0.0.0.0", 8000, "already in use", *owner)])
    assert line.level is Severity.WARNING
    assert line.text == "0.0.0.0:8000 is that of a running server, triton 0.1.0 (trident serve models (pid 9))"
    assert line.cure.endswith("a second server needs --http-port")


# --- a server that runs

URL = "http://host:8000"
DATE_S = 1795608000.0
DURATION = {"count": 4, "ns": 8_000_000}
STATS = {"success": DURATION, "fail": {"count": 1, "ns": 5}, "queue": DURATION, "compute_infer": DURATION}
ANSWERS: dict[str, tuple[int, Any]] = {
    "/v2": (200, {"name": "triton", "version": "2.60.0", "extensions": ["statistics"]}),
    "/v2/health/live": (200, None),
    "/v2/health/ready?verbose": (200, None),
    "/v2/repository/index": (200, [{"name": "m", "version": "1", "state": "READY"}]),
    "/v2/models/stats": (200, {"model_stats": [{"name": "m", "version": "1", "inference_stats": STATS}]}),
    "/metrics": (200, "# TYPE a counter\na 1\n"),
    "/console": (200, None),
    "/v2/trace/setting": (200, {"trace_level": ["OFF"]}),
}


def of_server(now: float = DATE_S, **answers: tuple[int, Any]) -> dict[str, Line]:
    """The lines by their check, of a server with ANSWERS of which some are replaced by the last part of their path."""
    replaced = {path: answers.get(path.rpartition("/")[2].partition("?")[0], told) for path, told in ANSWERS.items()}

    def ask(method: str, url: str) -> Answer:
        status, told = replaced[url.removeprefix(URL).removeprefix("http://host:8002")]
        if not status:
            raise NoAnswer("Connection refused")
        body = told.encode() if isinstance(told, str) else b"" if told is None else json.dumps(told).encode()
        return Answer(status, body, {"Date": "Wed, 25 Nov 2026 12:00:00 GMT"}, 0.001)

    return {line.check: line for line in server_lines(f"{URL}/", 8002, ask, lambda: now)}


def test_healthy_server_has_a_passed_check_for_each_part() -> None:
    found = of_server()
    assert {line.level for line in found.values()} == {Severity.OK}
    assert found.pop("version").text.startswith("2.60.0, name 'triton'; this command is ")
    assert {check: line.text for check, line in found.items()} == {
        "live": "answers in 1.0 ms, the median of 5",
        "ready": "every model that the start had to load is served",
        "clock": "agrees with this machine's",
        "models": "1 of 1 versions are ready",
        "m 1": "4 answered, 2.00 ms each (queue 2.00 ms, compute_infer 2.00 ms); 1 failed",
        "metrics": "1 metrics at http://host:8002/metrics, the default port; --metrics-port names another",
        "console": "at http://host:8000/console",
    }
    assert of_server(DATE_S - 100)["clock"].text == "this machine's is 100 s behind the server's"


def test_features_that_need_an_option_name_it() -> None:
    refusal = {"error": "Not Found", "hint": "start the server with --console=true"}
    found = of_server(console=(404, refusal))
    assert "was started without --console=true" in found["console"].text
    assert "was started without --trace-config=level=TIMESTAMPS" in found["traces"].text
    # NVIDIA's server has no such option.
    assert "console" not in of_server(console=(404, {"error": "Not Found"}))
    assert "traces" not in of_server(console=(404, refusal), setting=(200, {"trace_level": ["TIMESTAMPS"]}))


def test_the_disks_of_logs_and_traces_have_room_and_can_be_written(tmp_path: Path) -> None:
    options = ["--log-file=/no/such/folder/log", f"--trace-config=triton,file={tmp_path}/trace"]

    def levels(free: int) -> dict[str, Severity]:
        return {line.check: line.level for line in file_lines(settings(tmp_path, *options), lambda folder: free)}

    assert levels(1 << 30) == {"log": Severity.FAILED, "traces": Severity.OK}
    assert levels((1 << 30) - 1) == {"log": Severity.FAILED, "traces": Severity.WARNING}
    assert list(file_lines(settings(tmp_path))) == []


FAILING = {"phase": "failed", "loaded": 1, "total": 2, "failures": {"m": "no file"}}
STUCK = {"name": "m", "version": "1", "long_execution": {"ns": 45 * 10**9, "pending_count": 0}}
INDEX = [{"name": "m", "state": "UNAVAILABLE", "reason": "no file"}, {"name": "n"}]


@pytest.mark.parametrize(
    ("answers", "check", "level", "text"),
    [
        ({"v2": (0, None)}, "live", Severity.FAILED, "no answer: Connection refused"),
        ({"v2": (200, "a page of metrics")}, "protocol", Severity.FAILED, f"{URL}/v2 is not answered as Triton's"),
        ({"ready": (400, FAILING)}, "ready", Severity.FAILED, "failed; 1 of 2 models loaded; m: no file"),
        (
            {"stats": (200, {"model_stats": [STUCK]})},
            "execution",
            Severity.WARNING,
            "m 1: an execution has run for 45 s",
        ),
        ({"index": (200, INDEX)}, "m", Severity.WARNING, "UNAVAILABLE: no file"),
        ({"index": (401, None)}, "models", Severity.WARNING, "it is not open to callers without a token or a key"),
        (
            {
                "metrics": (
                    200,
                    "# TYPE a b\n"
                    'trident_trace_lost_total{reason="queue_full"} 1\n'
                    'trident_trace_lost_total{reason="not_written"} 2.0\n',
                )
            },
            "traces",
            Severity.WARNING,
            "3 traces were lost since the start",
        ),
        (
            {"metrics": (0, None)},
            "metrics",
            Severity.WARNING,
            "no answer at http://host:8002/metrics, the default port; --metrics-port names another: Connection",
        ),
        ({"live": (400, {"error": "gone"})}, "live", Severity.FAILED, "HTTP 400: gone"),
    ],
)
def test_faults_of_a_server_have_lines_with_cures(
    answers: dict[str, tuple[int, Any]], check: str, level: Severity, text: str
) -> None:
    found = of_server(**answers)
    assert (found[check].level, found[check].text[: len(text)]) == (level, text)
    assert found[check].cure
    assert "n" not in found  # a model that was never asked for is not at fault


S3, GCS = parse_location("s3://bucket/models"), parse_location("gs://bucket/models")

# --- repositories

SIZES = {"config.pbtxt": 10, "1/model.onnx": 100, "2/model.onnx": 1000, "old/model.onnx": 5}
FILES = [SourceFile(path, size, "etag") for path, size in SIZES.items()]
REPOSITORY = RepositoryReading(location=S3, models={"m": FILES})
NO_TEXT = {"backends": {"text": ["a", "b"]}, "not_installed": {"text": NotInstalled("no tokenizers", hint="[text]")}}


def settings(folder: Path, *options: str) -> ServerSettings:
    return read_settings([f"--model-repository={folder}", f"--model-cache-directory={folder}-cache", *options], {})


def read(folder: Path, *options: str) -> RepositoryReading:
    return read_repository(parse_location(str(folder)), settings(folder, *options))


@pytest.mark.parametrize(
    ("changes", "check", "level", "text", "cure"),
    [
        ({}, "models", Severity.OK, "1 model, 2 versions, 1.09 KiB", ""),
        ({}, "no versions", Severity.WARNING, "m/old: ", "1, 2, 3"),
        ({"models": {}}, "models", Severity.WARNING, "there is no model", "expected MODEL/1/model.onnx"),
        ({"failure": "no such folder", "hint": "make it"}, "models", Severity.FAILED, "no such folder", "make it"),
        ({"ignored": ["code"]}, "ignored", Severity.WARNING, "code: ", "rename"),
        ({"models": {"docs": [SourceFile("README", 1, "a")]}}, "no models", Severity.WARNING, "docs: ", "move them"),
        ({"refused": 0}, "validation", Severity.OK, "every model would load", ""),
        ({"refused": 0, **NO_TEXT}, "validation", Severity.OK, "every model would load with its framework", ""),
        (NO_TEXT, "backend text", Severity.FAILED, "a, b: no tokenizers", "[text]"),
        ({**NO_TEXT, "must_load": False}, "backend text", Severity.WARNING, "a, b: no tokenizers", "[text]"),
        ({"refused": 1}, "validation", Severity.FAILED, "1 model of 1 would", "trident validate s3://bucket/models"),
        ({"refused": 1, "must_load": False}, "validation", Severity.WARNING, "1 model of 1", "trident validate"),
    ],
)
def test_repository_state_is_reported(
    changes: dict[str, Any], check: str, level: Severity, text: str, cure: str
) -> None:
    (line,) = [each for each in repository_lines(replace(REPOSITORY, **changes)) if each.check == check]
    assert (line.level, line.text[: len(text)], cure in line.cure) == (level, text, True)


def test_models_are_compared_with_memory_and_with_the_disk_of_the_cache(tmp_path: Path) -> None:
    local = replace(REPOSITORY, location=parse_location("/models"))

    def level(reading: RepositoryReading, memory: int | None, free: int = 0, *options: str) -> list[Severity]:
        found = room_lines([reading], memory, settings(tmp_path / "models", *options), lambda path: free)
        return [line.level for line in found]

    # The newest version and the files beside it.
    assert (level(local, 1015), level(local, 1014), level(local, None)) == ([Severity.OK], [Severity.WARNING], [])
    assert (level(REPOSITORY, None, 1015), level(REPOSITORY, None, 1014)) == ([Severity.OK], [Severity.FAILED])
    assert level(REPOSITORY, None, 1 << 20, "--model-cache-bytes=1000") == [Severity.WARNING]
    assert not (tmp_path / "models-cache").exists()
    # What the cache has may be removed from it.
    for folder in ("blobs", "parts"):
        (tmp_path / "models-cache" / folder).mkdir(parents=True)
    (tmp_path / "models-cache" / "blobs" / "x").write_bytes(bytes(15))
    assert level(REPOSITORY, None, 1000) == [Severity.OK]


def test_a_local_repository_is_scanned_and_validated(shipped_models: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    shutil.copytree(shipped_models, repository)
    good = read(repository)
    assert (good.refused, good.ignored, good.must_load) == (0, [], True)
    (repository / "asks").mkdir()
    (repository / "asks" / "config.pbtxt").write_text("instance_group [{ kind: KIND_GPU }]")
    bad = read(repository, "--exit-on-error=false")
    assert (bad.refused, bad.asking_for_gpu, bad.must_load) == (1, ["asks"], False)
    assert len(bad.models) == len(good.models) + 1
    # A model that is served by itself is not a repository.
    one = read(repository / "simple", "--single-model=other")
    assert (list(one.models), one.is_single, one.ignored, one.refused) == (["other"], True, [], None)
    assert "without a repository around it" in next(repository_lines(one)).text
    assert read(tmp_path / "missing").failure == "repository path is not a valid directory"


# --- storages

AWS = StorageAccess(
    "access key …MPLE from env", "env", "https://s3.eu-west-1.amazonaws.com", "eu-west-1", RegionOrigin.CONFIGURATION
)
GOOGLE = StorageAccess("service account a@p.iam", "google.oauth2.service_account", "https://storage.googleapis.com")
LISTING = CallReading("ListObjectsV2", "s3:ListBucket", S3.text)
GOOD = StorageReading(S3, AWS, calls=[LISTING], skew_s=0.4)


def line(reading: StorageReading, check: str, environ: Mapping[str, str]) -> Line:
    return next(each for each in storage_lines(reading, environ) if each.check == check)


def test_reachable_storage_passes_and_unusable_credentials_end_the_checks() -> None:
    lines = list(storage_lines(GOOD, {"AWS_DEFAULT_REGION": "eu-west-1"}))
    assert {each.level for each in lines} == {Severity.OK}
    assert [each.check for each in lines] == ["credentials", "region", "endpoint", "clock", "ListObjectsV2"]
    (found,) = storage_lines(StorageReading(S3, None, "the profile does not exist", "name another"), {})
    assert (found.level, found.text, found.cure) == (Severity.FAILED, "the profile does not exist", "name another")


@pytest.mark.parametrize(
    ("access", "credentials", "environ", "text"),
    [
        (AWS, "env", {}, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (AWS, "shared-credentials-file", {"AWS_PROFILE": "team"}, "shared credentials file, profile 'team'"),
        (AWS, "shared-credentials-file", {}, "profile 'default'"),
        (AWS, "a-new-method", {}, "from a-new-method"),
        (AWS, "", {}, "anonymous"),
        (GOOGLE, "google.oauth2.service_account", {}, "a service account's key file"),
        (GOOGLE, "google.auth.identity_pool", {"GOOGLE_APPLICATION_CREDENTIALS": "/k.json"}, "CREDENTIALS=/k.json"),
        (GOOGLE, "", {"STORAGE_EMULATOR_HOST": "localhost:9023"}, "names an emulator"),
    ],
)
def test_the_origin_of_credentials_is_named(
    access: StorageAccess, credentials: str, environ: dict[str, str], text: str
) -> None:
    reading = StorageReading(S3 if access is AWS else GCS, replace(access, credentials=credentials), skew_s=0.0)
    assert text in line(reading, "credentials", environ).text


@pytest.mark.parametrize(
    ("origin", "environ", "text"),
    [
        (RegionOrigin.CREDENTIAL_FILE, {}, "from the credential file"),
        (RegionOrigin.CONFIGURATION, {"AWS_DEFAULT_REGION": "eu-west-1"}, "from AWS_DEFAULT_REGION"),
        (RegionOrigin.CONFIGURATION, {}, "from the AWS configuration file"),
        (RegionOrigin.DEFAULT, {}, "the default: nothing names another"),
        # boto3 does not read it.
        (RegionOrigin.DEFAULT, {"AWS_REGION": "a"}, "the default: nothing names another; AWS_REGION is a"),
    ],
)
def test_the_origin_of_the_region_is_named(origin: RegionOrigin, environ: dict[str, str], text: str) -> None:
    found = line(replace(GOOD, access=replace(AWS, region_origin=origin)), "region", environ)
    assert found.text == f"eu-west-1, {text}"
    assert found.level is (Severity.WARNING if "AWS_REGION" in environ else Severity.OK)


@pytest.mark.parametrize(
    ("environ", "proxy"),
    [
        ({}, ""),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128 (HTTPS_PROXY)"),
        ({"https_proxy": "http://me:secret@proxy:3128/"}, "http://***@proxy:3128/ (https_proxy)"),
        ({"HTTPS_PROXY": "me:secret@proxy:3128"}, "***@proxy:3128 (HTTPS_PROXY)"),
        ({"HTTP_PROXY": "http://proxy:3128"}, ""),
        ({"ALL_PROXY": "http://proxy:3128"}, "http://proxy:3128 (ALL_PROXY)"),
        ({"HTTPS_PROXY": "http://proxy", "NO_PROXY": "localhost, .amazonaws.com"}, ""),
        ({"HTTPS_PROXY": "http://proxy", "NO_PROXY": "aws.com"}, "http://proxy (HTTPS_PROXY)"),
        ({"HTTPS_PROXY": "http://proxy", "no_proxy": "*"}, ""),
    ],
)
def test_the_proxy_is_the_one_that_applies_to_the_endpoint(environ: dict[str, str], proxy: str) -> None:
    assert proxy_of(AWS.endpoint, environ) == proxy
    secret = replace(GOOD, access=replace(AWS, endpoint="https://me:secret@minio:9000"))
    assert line(secret, "endpoint", {}).text == "https://***@minio:9000, without a proxy"


@pytest.mark.parametrize(
    ("skew_s", "level", "text"),
    [
        (-59.0, Severity.OK, "agrees"),
        (61.0, Severity.WARNING, "61 s ahead of"),
        (-901.0, Severity.FAILED, "901 s behind"),
        (None, Severity.WARNING, "told no time: no route"),
    ],
)
def test_a_clock_beyond_15_minutes_fails(skew_s: float | None, level: Severity, text: str) -> None:
    found = line(replace(GOOD, skew_s=skew_s, skew_unknown="no route"), "clock", {})
    assert (found.level, text in found.text) == (level, True)


def test_a_refused_call_shows_the_missing_permission() -> None:
    refused = CallReading("GetObject", "s3:GetObject", "s3://bucket/models/x", "AccessDenied", "grant it", refused=True)
    found = line(replace(GOOD, calls=[refused]), "GetObject", {})
    assert (found.level, found.text) == (Severity.FAILED, "AccessDenied")
    assert found.cure == f"grant it. The statement for a policy: {s3_statement(S3, 's3:GetObject')}"
    refused = CallReading("objects.list", "storage.objects.list", GCS.text, "refused", "grant the role", refused=True)
    found = line(StorageReading(GCS, GOOGLE, calls=[refused], skew_s=0.0), "objects.list", {})
    assert found.cure.startswith("grant the role: gcloud storage buckets")
    missing = replace(LISTING, failure="NoSuchBucket")
    assert "the name of the bucket" in line(replace(GOOD, calls=[missing]), "ListObjectsV2", {}).cure
