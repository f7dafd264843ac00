"""`trident doctor`: whether this machine can serve these settings, or whether a server serves as it should."""

from __future__ import annotations

import json
import os
import re
import resource
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from email.utils import parsedate_to_datetime
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit

from trident.adapters.common.options import SWITCH, Option, is_unix, spell_endpoint
from trident.app.process.environment import process_environment
from trident.app.process.files import IN_MEMORY, NoTemporaryDirectory, max_connections, temporary_directory
from trident.app.settings.reading import read_settings, with_repositories
from trident.app.settings.server import HTTP, ServerSettings, Service
from trident.app.supervisor.start import Topology, choose_topology
from trident.app.terminal import counted
from trident.app.version import VERSION
from trident.app.worker.listening_sockets import BindFailed, close_listener, open_listener, owner_of
from trident.core.backends.cpu_budget import available_cores, plan_threads
from trident.core.backends.registry import BUILT_IN, DeviceSupport, ProviderState, device_support
from trident.core.cuda import gpu_ids
from trident.core.errors import NotInstalled, ServerError
from trident.core.observability.hardware import DriverReading, MemoryState, host_memory, read_driver
from trident.core.observability.log import LogOptions, configure_logging, escaped
from trident.core.repository.location import Scheme, parse_location
from trident.tools.ask import DENIED, OK, Answer, Ask, NoAnswer, ask, long_executions, readiness, with_scheme
from trident.tools.doctor_repositories import (
    NOTED_SKEW_S,
    Area,
    Line,
    RepositoryReading,
    Severity,
    file_lines,
    first_names,
    read_repository,
    read_storage,
    repository_lines,
    room_lines,
    size_text,
    storage_lines,
)

JSON = Option.of_command("json", SWITCH, False, "Print the report as JSON.")
_JSON_FLAG = f"--{JSON.flag}"
# Of a server that runs. A host without a port could be the folder of a repository.
_URL = re.compile(r"https?://.*|([\w.-]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}/?")


def doctor(arguments: Sequence[str]) -> int:
    """Print the report; the arguments are `--json` and those of `serve`, or the URLs of servers that run.

    Returns 1 if a line has failed, otherwise 0. Raises BadOption.
    """
    given = [each for each in arguments if _URL.fullmatch(each)]
    urls = [with_scheme(each) for each in given]
    of_serve = [each for each in arguments if each != _JSON_FLAG and each not in given]
    settings = read_settings(with_repositories(of_serve), needs_repository=False)
    # The report has everything that a log would say.
    configure_logging(LogOptions(info=False, warning=False, error=False))
    lines = [line for url in urls for line in server_lines(url, settings.metrics_port)]
    if not urls:
        lines = examine_machine(settings)
    text = json_report(lines) if _JSON_FLAG in arguments else text_report(lines, OF_SERVER if urls else OF_MACHINE)
    sys.stdout.write(text)
    return 1 if has_failed(lines) else 0


def examine_machine(settings: ServerSettings) -> list[Line]:
    """Every line of the page. Asks the storages, opens the ports for a moment, and loads local models one by one."""
    environ = process_environment()
    storages: list[Line] = []
    repositories: list[RepositoryReading] = []
    for text in dict.fromkeys(filter(None, settings.model_repository)):
        try:
            location = parse_location(text)
        except ServerError as error:
            storages.append(Area("Repository").failed("address", error.message, error.hint or ""))
            continue
        if location.scheme is Scheme.LOCAL:
            repositories.append(read_repository(location, settings))
            continue
        storage = read_storage(location, settings.cloud_credential_path, environ)
        found = list(storage_lines(storage, environ))
        storages += found
        if not has_failed(found):  # otherwise the scan would fail in the same way, after more attempts
            repositories.append(read_repository(location, settings, storage.folders))
    limits = read_limits(settings)
    on_cpu = settings.gpu_missing == "cpu"
    asked_by = [] if on_cpu else [name for reading in repositories for name in reading.asking_for_gpu]
    used = {name for reading in repositories for name in reading.backends.keys() - reading.not_installed.keys()}
    free_memory = limits.room.free if limits.room is not None else None
    return [
        *storages,
        *(line for reading in repositories for line in repository_lines(reading)),
        *room_lines(repositories, free_memory, settings),
        *file_lines(settings),
        *limit_lines(limits, sum(len(reading.models) for reading in repositories)),
        *port_lines(read_ports(settings.services())),
        *gpu_lines(read_gpu(settings, used if settings.model_repository else None), asked_by),
    ]


# --- the report as text and as JSON
_WIDTH = 100
OF_MACHINE = ("ready to serve", "this machine cannot serve this as it is")
OF_SERVER = ("the server serves", "the server does not serve as it should")


def text_report(lines: Sequence[Line], verdicts: tuple[str, str] = OF_MACHINE) -> str:
    """One block per area, at most 100 columns wide where blanks allow it, and the result in the last line.

    `verdicts` are its words if nothing has failed, and if something has.
    """
    blocks = [_block(area, list(found)) for area, found in groupby(lines, key=lambda line: line.area)]
    counts = f"{_count(lines, Severity.FAILED)} failed, {counted(_count(lines, Severity.WARNING), 'warning')}"
    return "\n".join([*blocks, f"{counts}: {verdicts[has_failed(lines)]}\n"])


def json_report(lines: Sequence[Line]) -> str:
    """A JSON object: the number of failed lines and of warnings, and every line."""
    counts = {"failed": _count(lines, Severity.FAILED), "warnings": _count(lines, Severity.WARNING)}
    return json.dumps({**counts, "lines": [asdict(line) for line in lines]}, indent=2) + "\n"


def has_failed(lines: Sequence[Line]) -> bool:
    return _count(lines, Severity.FAILED) > 0


def _block(area: str, lines: Sequence[Line]) -> str:
    width = max(len(line.check) for line in lines)
    texts = [escaped(area)]
    for line in lines:
        mark = line.level.upper() if line.level is Severity.FAILED else line.level
        first = f"  {mark:<7}  {line.check:<{width}}  "
        margin = " " * len(first)
        starts = [(line.text, first, margin), (line.cure, f"{margin}cure: ", f"{margin}      ")]
        for text, start, others in starts if line.cure else starts[:1]:
            # A long path or ARN stays whole, so that it can be copied.
            wrapper = textwrap.TextWrapper(_WIDTH, initial_indent=start, subsequent_indent=others)
            wrapper.break_long_words = wrapper.break_on_hyphens = False
            texts += wrapper.wrap(escaped(text)) or [start.rstrip()]
    return "\n".join(texts) + "\n"


def _count(lines: Sequence[Line], level: Severity) -> int:
    return sum(line.level is level for line in lines)


# --- GPUs and frameworks
_GPU = Area("GPU")
_DRIVER_CURE = (
    "install NVIDIA's driver, and start the container with the GPUs (docker run --gpus all, or nvidia.com/gpu in "
    "Kubernetes)"
)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """`driver` is the reason if there is none. `usable` are the CUDA numbers of the GPUs that the server may use.

    `support` is by the backend's name: its providers, or that its framework cannot be imported.
    """

    driver: DriverReading | str
    usable: Sequence[int]
    support: Mapping[str, DeviceSupport | NotInstalled]


def read_gpu(settings: ServerSettings, backends: Collection[str] | None) -> GpuReading:
    """Load the driver and the frameworks of `backends`, or without them those that are installed; takes seconds."""
    support = device_support(BUILT_IN if backends is None else backends, settings.backend_settings)
    if backends is None:
        support = {name: found for name, found in support.items() if isinstance(found, DeviceSupport)}
    usable = gpu_ids(settings.min_supported_compute_capability)
    return GpuReading(read_driver(settings.visible_gpus), usable, support)


def gpu_lines(reading: GpuReading, asked_by: Sequence[str]) -> list[Line]:
    """`asked_by` are the models whose configuration asks for a GPU."""
    asked = f"; asked for by {first_names(asked_by)}" if asked_by else ""
    lines = [_driver_line(reading, asked)]
    for name, support in reading.support.items():
        if isinstance(support, NotInstalled):
            lines.append(_GPU.failed(f"backend {name}", support.message, support.hint or ""))
            continue
        lines.append(_GPU.ok(f"backend {name}", support.framework))
        lines += [_provider_line(each, bool(reading.usable), asked) for each in support.providers]
    return lines


def _driver_line(reading: GpuReading, asked: str) -> Line:
    driver, usable = reading.driver, len(reading.usable)
    if isinstance(driver, str) and not usable:
        if asked:
            return _GPU.failed("driver", f"no GPU ({driver}){asked}", _DRIVER_CURE)
        return _GPU.ok("driver", "no GPU, and none is asked for: models run on the CPU")
    if isinstance(driver, str):
        text = f"{counted(usable, 'GPU')}, but their state cannot be read ({driver})"
        return _GPU.warning("driver", text, "give the container the driver's utility libraries")
    sizes = ", ".join(size_text(size) for size in driver.gpu_bytes if size)
    text = f"{driver.version}, CUDA up to {driver.cuda}, {counted(usable, 'GPU')}" + (f" ({sizes})" if sizes else "")
    if usable:
        return _GPU.ok("driver", text)
    cure = "check CUDA_VISIBLE_DEVICES and --min-supported-compute-capability; `nvidia-smi` shows what the driver sees"
    return _GPU.line(Severity.FAILED if asked else Severity.WARNING, "driver", f"{text} that can be used{asked}", cure)


def _provider_line(state: ProviderState, has_gpu: bool, asked: str) -> Line:
    if state.installed and not state.problem:
        return _GPU.ok(state.name, state.devices or "its libraries load")
    is_for_gpus = state.name.startswith("CUDA")
    if state.installed:
        level = Severity.FAILED if is_for_gpus and (asked or has_gpu) else Severity.WARNING
        return _GPU.line(level, state.name, f"cannot be used: {state.problem}", state.cure)
    text = "not in this installation"
    if is_for_gpus and asked:
        return _GPU.failed(state.name, f"{text}{asked}", state.cure)
    if is_for_gpus and has_gpu:
        return _GPU.warning(state.name, f"{text}: models run on the CPU", state.cure)
    return _GPU.ok(state.name, f"{text}, and not asked for" if is_for_gpus else f"{text} (optional)")


# --- limits
_LIMITS = Area("Limits")
_FEW_CONNECTIONS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReading:
    """`cores` are those that the process may use, `affinity` those on which it may run at all.

    `room` is None if the system does not tell. `open_files` is the hard limit. `temporary` is the directory of
    temporary files, empty if there is none. `in_memory_bytes` is the size of /dev/shm, 0 without it.
    """

    cores: float
    affinity: int
    room: MemoryState | None
    open_files: int
    temporary: str
    in_memory_bytes: int
    topology: Topology
    worker_bytes: int


def read_limits(settings: ServerSettings) -> LimitReading:
    try:
        temporary = temporary_directory()
    except NoTemporaryDirectory:
        temporary = ""
    try:
        status = os.statvfs(IN_MEMORY)
        in_memory = status.f_blocks * status.f_frsize
    except OSError:
        in_memory = 0
    return LimitReading(
        cores=available_cores(),
        affinity=len(os.sched_getaffinity(0)),
        room=host_memory(),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        temporary=temporary,
        in_memory_bytes=in_memory,
        topology=choose_topology(settings),
        worker_bytes=settings.http_worker_memory_bytes,
    )


def limit_lines(reading: LimitReading, sessions: int) -> Iterator[Line]:
    """`sessions` is the number of models that would be loaded."""
    plan = plan_threads(reading.cores / reading.topology.engines, max(1, sessions))
    shared = "a session gets" if sessions <= 1 else f"each of {sessions} sessions gets"
    quota = f" (a quota; {reading.affinity} are visible)" if reading.cores < reading.affinity else ""
    text = f"{reading.cores:g} cores{quota}; {shared} {plan.intra_op_threads} threads"
    cure = "give the container at least one core: requests are throttled"
    yield _LIMITS.judged("CPU", text, cure, bad=reading.cores < 1)

    room = reading.room
    if room is None:
        yield _LIMITS.warning("memory", "the system does not tell its limit", "make /proc readable")
    else:
        yield _LIMITS.ok("memory", f"{size_text(room.free)} free of {size_text(room.total)}")

    workers, engines = reading.topology.http_workers, reading.topology.engines
    together = workers * engines * reading.worker_bytes
    text = str(reading.topology)
    if workers:
        those = "the engine" if engines == 1 else "the engines"
        text += f"; they share up to {size_text(together)} with {those}, which count to the memory"
    # The shared memory is a memfd: the size of /dev/shm does not limit it, the container's memory does.
    cure = "lower --http-worker-memory-bytes or --http-workers"
    yield _LIMITS.judged("processes", text, cure, bad=room is not None and together > room.free)

    if not reading.temporary:
        cure = "set TMPDIR to a folder that can be written; in Kubernetes mount an emptyDir at /tmp"
        yield _LIMITS.failed("temporary files", "no folder for them can be written", cure)
    elif reading.temporary == IN_MEMORY:
        text = f"they are kept in memory, in {IN_MEMORY}, which has {size_text(reading.in_memory_bytes)}"
        yield _LIMITS.warning("temporary files", text, "set TMPDIR to use another directory")
    else:
        yield _LIMITS.ok("temporary files", f"in {reading.temporary}")

    allowed = max_connections(reading.open_files)
    shown = "unlimited" if reading.open_files == resource.RLIM_INFINITY else str(reading.open_files)
    text = f"{shown}, which allows {allowed} connections"
    cure = "raise the hard limit: `ulimit -Hn`, `docker run --ulimit nofile=65536`, or LimitNOFILE of systemd"
    yield _LIMITS.judged("open files", text, cure, bad=allowed < _FEW_CONNECTIONS)


# --- ports
_PORTS = Area("Ports")
# The address at which a server that listens on all addresses is asked from this machine.
_FROM_HERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]", "": "127.0.0.1"}


@dataclass(frozen=True, slots=True)
class PortReading:
    """`failure` is the message of the failed attempt to open the port, empty if it opened.

    `owner` is the process that has the port, empty if it is unknown; `server` is the name and version of a server that
    speaks Triton's protocol and has it. `option` moves the service to another port.
    """

    service: str
    address: str
    port: int
    failure: str = ""
    owner: str = ""
    server: str = ""
    option: str = ""


def read_ports(services: Mapping[str, Service]) -> list[PortReading]:
    """Open each port for a moment, as the server would, and ask a server that has it who it is."""
    readings: list[PortReading] = []
    for name, (address, port, option, _, reuses_port) in services.items():
        failure = owner = server = ""
        try:
            close_listener(open_listener(address, port, reuse_port=reuses_port))
        except BindFailed as error:
            failure = error.message.strip()
            owner = "" if is_unix(address) else owner_of(port)
            if name == HTTP:
                server = _running_server(f"http://{_FROM_HERE.get(address, address)}:{port}")
        readings.append(PortReading(name, address, port, failure, owner, server, option))
    running = next((each for each in readings if each.server), None)
    if running is None or not running.owner:
        return readings
    return [replace(each, server=running.server) if each.owner == running.owner else each for each in readings]


def _running_server(url: str) -> str:
    """`NAME VERSION` of the server at `url` that speaks Triton's protocol; "" if there is none."""
    try:
        found = ask("GET", f"{url}/v2").document
    except NoAnswer:
        return ""
    return f"{found['name']} {found['version']}" if _speaks_protocol(found) else ""


def port_lines(readings: Iterable[PortReading]) -> Iterator[Line]:
    for reading in readings:
        name = reading.service
        check = name if name.isupper() else name[0].upper() + name[1:]
        where = spell_endpoint(reading.address, reading.port)
        if not reading.failure:
            yield _PORTS.ok(check, f"{where} is free")
        elif reading.server:
            text = f"{where} is that of a running server, {reading.server} ({reading.owner or 'of another user'})"
            cure = f"`trident doctor URL` asks it; a second server needs {reading.option}"
            yield _PORTS.warning(check, text, cure)
        else:
            text = reading.failure + (f", by {reading.owner}" if reading.owner else "")
            yield _PORTS.failed(check, text, f"stop the process that has the port, or set {reading.option}")


# --- a server that runs
_SAMPLES = 5
_CONSOLE = "--console=true"
_MOST_MODELS = 20
_METRICS_PORT = 8002


def _speaks_protocol(metadata: Any) -> bool:
    return isinstance(metadata, dict) and {"name", "version", "extensions"} <= metadata.keys()


def server_lines(url: str, metrics_port: int, ask: Ask = ask, now: Callable[[], float] = time.time) -> list[Line]:
    """The lines of one server; `url` is that of its HTTP port, whose host also has the port of the metrics."""
    url = url.rstrip("/")
    area = Area(f"Server {url}")
    try:
        about = ask("GET", f"{url}/v2")
        if about.status not in DENIED and not _speaks_protocol(about.document):
            text = f"{url}/v2 is not answered as Triton's protocol has it ({about.refusal})"
            return [area.failed("protocol", text, "give the address of the HTTP port, which is 8000 by default")]
        answers = [ask("GET", f"{url}/v2/health/live") for _ in range(_SAMPLES)]
        ready = ask("GET", f"{url}/v2/health/ready?verbose")
        asked_at = now()
        index, counts = ask("POST", f"{url}/v2/repository/index"), ask("GET", f"{url}/v2/models/stats")
        page, traces = ask("GET", f"{url}/console"), ask("GET", f"{url}/v2/trace/setting")
    except NoAnswer as error:
        cure = "check the address and the port, which is 8000 unless --http-port names another; is the server running?"
        return [area.failed("live", f"no answer: {error}", cure)]
    is_live = answers[-1].status == OK
    median = statistics.median(answer.seconds for answer in answers)
    text = f"answers in {median * 1e3:.1f} ms, the median of {len(answers)}" if is_live else answers[-1].refusal
    version = area.warning("version", about.refusal, "")
    if _speaks_protocol(found := about.document):
        version = area.ok("version", f"{found['version']}, name '{found.get('name')}'; this command is {VERSION}")
    cure = "its log says why; this port may be another's"
    return [
        area.judged("live", text, cure, bad=not is_live, level=Severity.FAILED),
        _ready_line(area, ready),
        version,
        _clock_line(area, answers[-1], asked_at),
        *_model_lines(area, index),
        *_request_lines(area, counts),
        *_metrics_lines(area, url, metrics_port, ask),
        *_option_lines(area, url, page, traces),
    ]


def _ready_line(area: Area, answer: Answer) -> Line:
    ready = readiness(answer)
    if answer.status == OK:
        return area.ok("ready", ready.loaded or "every model that the start had to load is served")
    failures = [f"{name}: {reason}" for name, reason in ready.failures.items()]
    parts = [ready.phase, ready.loaded, *failures] if ready.phase else [answer.refusal]
    cure = "wait until the models are loaded" if ready.phase == "loading" else "its log and the models below say why"
    return area.failed("ready", "; ".join(filter(None, parts)), cure)


def _clock_line(area: Area, answer: Answer, now: float) -> Line:
    try:
        skew = now - parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
    except (TypeError, ValueError):
        return area.ok("clock", "the server tells no time")
    is_off = abs(skew) >= NOTED_SKEW_S
    text = f"this machine's is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's"
    cure = "synchronise both clocks: signatures and times in logs depend on them"
    return area.judged("clock", text if is_off else "agrees with this machine's", cure, bad=is_off)


def _model_lines(area: Area, answer: Answer) -> Iterable[Line]:
    found = answer.document
    if answer.status != OK or not isinstance(found, list):
        yield area.warning("models", answer.refusal, "ask with the key of the group model-repository")
        return
    ready = [entry for entry in found if entry.get("state") == "READY"]
    cure = "load one, or name a repository with models: trident validate REPO"
    yield area.judged("models", f"{len(ready)} of {len(found)} versions are ready", cure, bad=not ready)
    # A model that was never asked for, or that was unloaded, is not at fault.
    failed = [entry for entry in found if entry.get("reason") not in (None, "", "unloaded") and entry not in ready]
    for entry in failed[:_MOST_MODELS]:
        name = f"{entry.get('name')} {entry.get('version', '')}".strip()
        text = f"{entry.get('state') or 'not loaded'}: {entry['reason']}"
        yield area.warning(name, text, "correct it and load it again")


def _request_lines(area: Area, answer: Answer) -> Iterable[Line]:
    models = answer.found.get("model_stats", [])
    asked = [(model, model["inference_stats"]) for model in models if model.get("inference_stats")]
    asked = [(model, stats) for model, stats in asked if stats["success"]["count"] or stats["fail"]["count"]]
    asked.sort(key=lambda pair: -pair[1]["success"]["count"])
    if answer.status == OK and not asked:
        yield area.ok("requests", "none so far")
    for (name, version), text in long_executions(models):
        cure = "its log names the instance and the requests; load the model again if they never end"
        yield area.warning("execution", f"{name} {version}: {text}", cure)
    for model, stats in asked[:_MOST_MODELS]:
        success, failed = stats["success"], stats["fail"]["count"]
        times = ", ".join(f"{name} {_each_ms(stats[name])}" for name in ("queue", "compute_infer") if name in stats)
        text = f"{success['count']} answered, {_each_ms(success)} each ({times}); {failed} failed"
        yield area.ok(f"{model['name']} {model['version']}", text)


def _option_lines(area: Area, url: str, page: Answer, traces: Answer) -> Iterable[Line]:
    """The parts that an option switches on: present or not."""
    without = "the server was started without"
    if page.status == OK:
        yield area.ok("console", f"at {url}/console")
    elif _CONSOLE.encode() in page.body:  # a server that has no console at all does not name it
        yield area.ok("console", f"{without} {_CONSOLE}: there is no page, and no percentile of the last minute")
    if traces.fields.get("trace_level") == ["OFF"] and page.status != OK:
        yield area.ok("traces", f"{without} --trace-config=level=TIMESTAMPS: no request is traced")


def _each_ms(duration: Mapping[str, int]) -> str:
    return f"{duration['ns'] / max(1, duration['count']) / 1e6:.2f} ms"


# Counters of what was lost, the line's name, what it is, and the cure.
_LOSSES = (
    (
        "trident_log_lines_dropped_total",
        "log",
        "lines of the answering processes' log",
        "free space on its disk; see that its reader runs",
    ),
    ("trident_trace_lost_total", "traces", "traces", "free space on their disk, correct the collector, or trace less"),
    (
        "trident_payload_log_lost_total",
        "payload",
        "requests of the payload log",
        "the log says why; --payload-log-sample",
    ),
)


def _metrics_lines(area: Area, url: str, port: int, ask: Ask) -> Iterator[Line]:
    place = urlsplit(url)
    host = f"[{place.hostname}]" if ":" in (place.hostname or "") else place.hostname
    address = f"http://{host}:{port}/metrics"
    cure = "name the port with --metrics-port; --allow-metrics=false and --metrics-address close it"
    # No route of the server tells it.
    guess = ", the default port; --metrics-port names another" if port == _METRICS_PORT else ""
    try:
        answer = ask("GET", address)
    except NoAnswer as error:
        yield area.warning("metrics", f"no answer at {address}{guess}: {error}", cure)
        return
    families = answer.body.count(b"# TYPE ")
    if answer.status != OK or not families:
        yield area.warning("metrics", f"{address} is not a page of metrics: {answer.refusal}", cure)
        return
    yield area.ok("metrics", f"{families} metrics at {address}{guess}")
    for counter, check, subject, remedy in _LOSSES:
        values = re.findall(rf"^{counter}(?:{{[^}}]*}})? (\S+)$".encode(), answer.body, re.MULTILINE)
        if lost := sum(map(float, values)):
            yield area.warning(check, f"{lost:,.0f} {subject} were lost since the start", remedy)
