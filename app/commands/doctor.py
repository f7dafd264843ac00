"""The model repositories: their models, names that no model can have, and their size against memory and disk."""

from __future__ import annotations

import http.client
import json
import os
import resource
import ssl
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from email.utils import parsedate_to_datetime
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener, urlopen

from trident.adapters.common.options import FLAG, Option, is_unix, spell_endpoint
from trident.app.commands.validate import ValidateOptions, examine, make_check
from trident.app.process.environment import disable_telemetry, process_environment
from trident.app.process.files import IN_MEMORY, NoTemporaryDirectory, connection_places, temporary_directory
from trident.app.process.port_owner import owner_of
from trident.app.settings.reading import read_settings, with_repositories
from trident.app.settings.server import HTTP, ServerSettings, Service
from trident.app.supervisor.start import Topology, choose_topology
from trident.app.version import VERSION
from trident.app.worker.listening_sockets import BindFailed, close_listener, open_listener
from trident.core.backends.cpu_budget import available_cores, plan_threads
from trident.core.backends.registry import DeviceSupport, ProviderState, device_support
from trident.core.config.schema import ModelConfig, ModelInstanceGroup
from trident.core.cuda.driver import gpu_ids
from trident.core.errors import AccessRefused, ServerError
from trident.core.observability.hardware import DriverReading, MemoryRoom, host_room, read_driver
from trident.core.observability.log import escaped
from trident.core.repository.cache import CacheContents
from trident.core.repository.cloud_sources import open_store
from trident.core.repository.config import read_config
from trident.core.repository.disk import free_bytes
from trident.core.repository.layout_mistakes import no_models_hint
from trident.core.repository.location import Location, Scheme, parse_location
from trident.core.repository.repository import ModelDirectory, model_names, version_number
from trident.core.repository.sources import SourceFile, SourceOpener, SourceOptions, can_be_model
from trident.core.repository.stores.object_store import (
    RegionOrigin,
    StorageAccess,
    StoredObject,
    TransientError,
    read_cloud_credentials,
)

if TYPE_CHECKING:
    from trident.core.repository.stores.gcs import GcsStore
    from trident.core.repository.stores.s3 import S3Store


_UNITS = ("KiB", "MiB", "GiB", "TiB")


def size_text(count: int) -> str:
    """`count` bytes in the largest binary unit that fits, such as `1.5 GiB`."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in _UNITS:
        value /= 1024
        if value < 1024 or unit == _UNITS[-1]:
            break
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"


_WIDTH = 100
OF_MACHINE = ("ready to serve", "this machine cannot serve this as it is")
OF_SERVER = ("the server serves", "the server does not serve as it should")


class Level(StrEnum):
    """How bad a line is. Only FAILED sets the exit status."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the page. Lines of one `area` stand together; `cure` says what to do about a line that is not OK."""

    area: str
    check: str
    level: Level
    text: str
    cure: str = ""


def text_report(lines: Sequence[Line], verdicts: tuple[str, str] = OF_MACHINE) -> str:
    """One block per area, at most 100 columns wide where blanks allow it, and the result in the last line.

    `verdicts` are its words if nothing has failed, and if something has.
    """
    blocks = [_block(area, list(found)) for area, found in groupby(lines, key=lambda line: line.area)]
    return "\n".join([*blocks, f"{_counts(lines)}: {verdicts[has_failed(lines)]}\n"])


def json_report(lines: Sequence[Line]) -> str:
    """A JSON object: the number of failed lines and of warnings, and every line."""
    counts = {"failed": _count(lines, Level.FAILED), "warnings": _count(lines, Level.WARNING)}
    return json.dumps({**counts, "lines": [asdict(line) for line in lines]}, indent=2) + "\n"


def has_failed(lines: Sequence[Line]) -> bool:
    return _count(lines, Level.FAILED) > 0


def _block(area: str, lines: Sequence[Line]) -> str:
    width = max(len(line.check) for line in lines)
    return "\n".join([escaped(area), *(text for line in lines for text in _texts(line, width))]) + "\n"


def _texts(line: Line, width: int) -> list[str]:
    mark = line.level.upper() if line.level is Level.FAILED else line.level
    first = f"  {mark:<7}  {line.check:<{width}}  "
    margin = " " * len(first)
    texts = _wrapped(line.text, first, margin)
    if line.cure:
        texts += _wrapped(line.cure, f"{margin}cure: ", f"{margin}      ")
    return texts


def _wrapped(text: str, first: str, margin: str) -> list[str]:
    # A long path or ARN stays whole, so that it can be copied.
    wrapper = textwrap.TextWrapper(_WIDTH, initial_indent=first, subsequent_indent=margin)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return wrapper.wrap(escaped(text)) or [first.rstrip()]


def _counts(lines: Sequence[Line]) -> str:
    failed, warnings = _count(lines, Level.FAILED), _count(lines, Level.WARNING)
    return f"{failed} failed, {warnings} {'warning' if warnings == 1 else 'warnings'}"


def _count(lines: Sequence[Line], level: Level) -> int:
    return sum(line.level is level for line in lines)


_TIMEOUT_S = 5.0
_SAMPLES = 5
_NOTED_SKEW_S = 60.0
_MOST_MODELS = 20
_LARGEST_ANSWER = 64 << 20
_OK = 200
_DENIED = (401, 403)


class NoAnswer(Exception):
    """Nothing that speaks HTTP answered; the argument says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`seconds` is the time from the call to the end of the answer."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    seconds: float

    @property
    def document(self) -> Any:
        """The body as JSON; None if it is something else."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def refusal(self) -> str:
        """Why there is no useful answer."""
        if self.status in _DENIED:
            return f"it is not open to callers without a token or a key (HTTP {self.status})"
        document = self.document
        text = document.get("error", "") if isinstance(document, dict) else ""
        return f"HTTP {self.status}{f': {text}' if text else ''}"


Ask = Callable[[str, str], Answer]


def ask(method: str, url: str) -> Answer:
    """Call a server once. Raises NoAnswer."""
    began = time.monotonic()
    try:
        with urlopen(
            Request(url, method=method, data=b"{}" if method == "POST" else None), timeout=_TIMEOUT_S
        ) as found:
            body = found.read(_LARGEST_ANSWER)
            return Answer(found.status, body, dict(found.headers), time.monotonic() - began)
    except HTTPError as error:
        with error:
            return Answer(error.code, error.read(_LARGEST_ANSWER), dict(error.headers), time.monotonic() - began)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NoAnswer(str(getattr(error, "reason", error)) or type(error).__name__) from error


def running_server(url: str, ask: Ask = ask) -> str:
    """`NAME VERSION` of the server at `url` that speaks Triton's protocol; "" if there is none."""
    try:
        found = ask("GET", f"{url}/v2").document
    except NoAnswer:
        return ""
    return f"{found['name']} {found['version']}" if _speaks_protocol(found) else ""


def _speaks_protocol(metadata: Any) -> bool:
    return isinstance(metadata, dict) and {"name", "version", "extensions"} <= metadata.keys()


def server_lines(url: str, metrics_port: int, ask: Ask = ask, now: Callable[[], float] = time.time) -> list[Line]:
    """The lines of one server; `url` is that of its HTTP port, whose host also has the port of the metrics."""
    url = url.rstrip("/")
    area = f"Server {url}"
    try:
        about = ask("GET", f"{url}/v2")
        if about.status not in _DENIED and not _speaks_protocol(about.document):
            text = f"{url}/v2 is not answered as Triton's protocol has it ({about.refusal})"
            return [
                Line(
                    area, "protocol", Level.FAILED, text, "give the address of the HTTP port, which is 8000 by default"
                )
            ]
        answers = [ask("GET", f"{url}/v2/health/live") for _ in range(_SAMPLES)]
        lines = [_live_line(area, answers), _ready_line(area, ask("GET", f"{url}/v2/health/ready?verbose"))]
        lines += [_version_line(area, about), _clock_line(area, answers[-1], now())]
        index, counts = ask("POST", f"{url}/v2/repository/index"), ask("GET", f"{url}/v2/models/stats")
    except NoAnswer as error:
        cure = "check the address and the port, which is 8000 unless --http-port names another; is the server running?"
        return [Line(area, "live", Level.FAILED, f"no answer: {error}", cure)]
    return [
        *lines,
        *_model_lines(area, index),
        *_request_lines(area, counts),
        _metrics_line(area, url, metrics_port, ask),
    ]


def _live_line(area: str, answers: Sequence[Answer]) -> Line:
    median = statistics.median(answer.seconds for answer in answers)
    if answers[-1].status != _OK:
        return Line(area, "live", Level.FAILED, answers[-1].refusal, "its log says why; this port may be another's")
    return Line(area, "live", Level.OK, f"answers in {median * 1e3:.1f} ms, the median of {len(answers)}")


def _ready_line(area: str, answer: Answer) -> Line:
    found = answer.document
    body = found if isinstance(found, dict) else {}
    loaded = f"{body['loaded']} of {body['total']} models loaded" if {"loaded", "total"} <= body.keys() else ""
    failures = [f"{name}: {reason}" for name, reason in dict(body.get("failures") or {}).items()]
    if answer.status == _OK:
        return Line(area, "ready", Level.OK, loaded or "every model that the start had to load is served")
    parts = [str(body.get("phase", "")), loaded, *failures] if body.get("phase") else [answer.refusal]
    cure = (
        "wait until the models are loaded" if body.get("phase") == "loading" else "its log and the models below say why"
    )
    return Line(area, "ready", Level.FAILED, "; ".join(filter(None, parts)), cure)


def _version_line(area: str, answer: Answer) -> Line:
    found = answer.document
    if not _speaks_protocol(found):
        return Line(area, "version", Level.WARNING, answer.refusal, "")
    return Line(area, "version", Level.OK, f"{found['version']}, name '{found.get('name')}'; this command is {VERSION}")


def _clock_line(area: str, answer: Answer, now: float) -> Line:
    try:
        skew = now - parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
    except (TypeError, ValueError):
        return Line(area, "clock", Level.OK, "the server tells no time")
    if abs(skew) < _NOTED_SKEW_S:
        return Line(area, "clock", Level.OK, "agrees with this machine's")
    text = f"this machine's is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's"
    return Line(
        area, "clock", Level.WARNING, text, "synchronise both clocks: signatures and times in logs depend on them"
    )


def _model_lines(area: str, answer: Answer) -> Iterable[Line]:
    found = answer.document
    if answer.status != _OK or not isinstance(found, list):
        yield Line(area, "models", Level.WARNING, answer.refusal, "ask with the key of the group model-repository")
        return
    ready = [entry for entry in found if entry.get("state") == "READY"]
    level = Level.OK if ready else Level.WARNING
    cure = "" if ready else "load one, or name a repository with models: trident validate REPO"
    yield Line(area, "models", level, f"{len(ready)} of {len(found)} versions are ready", cure)
    # A model that was never asked for, or that was unloaded, is not at fault.
    failed = [entry for entry in found if entry.get("reason") not in (None, "", "unloaded") and entry not in ready]
    for entry in failed[:_MOST_MODELS]:
        name = f"{entry.get('name')} {entry.get('version', '')}".strip()
        yield Line(
            area,
            name,
            Level.WARNING,
            f"{entry.get('state') or 'not loaded'}: {entry['reason']}",
            "correct it and load it again",
        )


def _request_lines(area: str, answer: Answer) -> Iterable[Line]:
    found = answer.document
    models = found.get("model_stats", []) if answer.status == _OK and isinstance(found, dict) else []
    asked = [(model, model["inference_stats"]) for model in models if model.get("inference_stats")]
    asked = [(model, stats) for model, stats in asked if stats["success"]["count"] or stats["fail"]["count"]]
    asked.sort(key=lambda pair: -pair[1]["success"]["count"])
    if answer.status == _OK and not asked:
        yield Line(area, "requests", Level.OK, "none so far")
    for model, stats in asked[:_MOST_MODELS]:
        success, failed = stats["success"], stats["fail"]["count"]
        times = ", ".join(f"{name} {_each_ms(stats[name])}" for name in ("queue", "compute_infer") if name in stats)
        text = f"{success['count']} answered, {_each_ms(success)} each ({times}); {failed} failed"
        yield Line(area, f"{model['name']} {model['version']}", Level.OK, text)


def _each_ms(duration: Mapping[str, int]) -> str:
    return f"{duration['ns'] / max(1, duration['count']) / 1e6:.2f} ms"


def _metrics_line(area: str, url: str, port: int, ask: Ask) -> Line:
    place = urlsplit(url)
    host = f"[{place.hostname}]" if ":" in (place.hostname or "") else place.hostname
    address = f"http://{host}:{port}/metrics"
    cure = "name the port with --metrics-port; --allow-metrics=false and --metrics-address close it"
    try:
        answer = ask("GET", address)
    except NoAnswer as error:
        return Line(area, "metrics", Level.WARNING, f"no answer at {address}: {error}", cure)
    families = answer.body.count(b"# TYPE ")
    if answer.status != _OK or not families:
        return Line(area, "metrics", Level.WARNING, f"{address} is no page of metrics: {answer.refusal}", cure)
    return Line(area, "metrics", Level.OK, f"{families} metrics at {address}")


# S3 refuses a signature of another time than this, in seconds. Source: AWS, "RequestTimeTooSkewed".
_LARGEST_SKEW_S = 900.0

_S3_ORIGINS = {
    "env": "the environment variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "shared-credentials-file": "the shared credentials file, profile '{profile}'",
    "config-file": "the AWS configuration file, profile '{profile}'",
    "assume-role": "a role that profile '{profile}' assumes",
    "assume-role-with-web-identity": "web identity (AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE)",
    "sso": "single sign-on of profile '{profile}'",
    "custom-process": "the credential_process of profile '{profile}'",
    "container-role": "the container's role (ECS task or EKS pod identity)",
    "iam-role": "the instance's role (EC2 metadata)",
    "explicit": "the credential file in TRITON_CLOUD_CREDENTIAL_PATH",
}
_GCS_ORIGINS = {
    "google.oauth2.service_account": "a service account's key file",
    "google.oauth2.credentials": "a user's login",
    "google.auth.compute_engine.credentials": "the metadata server (instance or GKE workload identity)",
    "google.auth.identity_pool": "workload identity federation",
    "google.auth.aws": "workload identity federation with AWS",
    "google.auth.pluggable": "workload identity federation with a program",
    "google.auth.impersonated_credentials": "an impersonated service account",
}
_GCS_ROLE = "roles/storage.objectViewer"


@dataclass(frozen=True, slots=True)
class CallReading:
    """One call to the storage. `permission` is what it needs; `target` is the URI.

    `failure` is the error's message, empty for a success. `refused`: the storage refused the call to this identity.
    """

    name: str
    permission: str
    target: str
    failure: str = ""
    hint: str = ""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class StorageReading:
    """The readings of one location. `access` is None if there is no usable credential; `failure` says why.

    `folders` are the names of the folders at the location, also those that no model can have. `skew_s` is the local
    time minus the storage's in seconds; None if the storage gave no time, for `skew_unknown`.
    """

    location: Location
    access: StorageAccess | None
    failure: str = ""
    hint: str = ""
    calls: Sequence[CallReading] = ()
    folders: frozenset[str] = frozenset()
    skew_s: float | None = None
    skew_unknown: str = ""


def storage_lines(reading: StorageReading, environ: Mapping[str, str]) -> list[Line]:
    """The lines of one location; `environ` are the variables of the process. No line has a secret."""
    area = f"Storage {reading.location.text}"
    if reading.access is None:
        return [Line(area, "credentials", Level.FAILED, reading.failure, reading.hint)]
    access, scheme = reading.access, reading.location.scheme
    lines = [_identity_line(area, scheme, access, environ)]
    if scheme is Scheme.S3:
        lines.append(_region_line(area, access, environ))
    lines += [_endpoint_line(area, access, environ), _storage_clock_line(area, reading)]
    return [*lines, *(_call_line(area, reading.location, access, call) for call in reading.calls)]


def _identity_line(area: str, scheme: Scheme, access: StorageAccess, environ: Mapping[str, str]) -> Line:
    if not access.credentials:
        text = "anonymous: the standard chain has no credentials"
        if scheme is Scheme.GS and "STORAGE_EMULATOR_HOST" in environ:
            text = "anonymous: STORAGE_EMULATOR_HOST names an emulator"
        return Line(area, "credentials", Level.OK, text)
    profile = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    words = _S3_ORIGINS if scheme is Scheme.S3 else _GCS_ORIGINS
    origin = words.get(access.credentials, access.credentials).format(profile=profile)
    who = access.identity.partition(" from ")[0]
    if scheme is Scheme.GS and "GOOGLE_APPLICATION_CREDENTIALS" in environ:
        origin += f", GOOGLE_APPLICATION_CREDENTIALS={environ['GOOGLE_APPLICATION_CREDENTIALS']}"
    return Line(area, "credentials", Level.OK, f"{who}, from {origin}")


def _region_line(area: str, access: StorageAccess, environ: Mapping[str, str]) -> Line:
    ignored = environ.get("AWS_REGION", "")
    match access.region_origin:
        case RegionOrigin.CREDENTIAL_FILE:
            text = f"{access.region}, from the credential file"
        case RegionOrigin.CONFIGURATION if environ.get("AWS_DEFAULT_REGION"):
            text = f"{access.region}, from AWS_DEFAULT_REGION"
        case RegionOrigin.CONFIGURATION:
            text = f"{access.region}, from the AWS configuration file"
        case RegionOrigin.DEFAULT:
            text = f"{access.region}, the default: nothing names another"
    if ignored and ignored != access.region:
        cure = f"set AWS_DEFAULT_REGION={ignored}; boto3 does not read AWS_REGION"
        return Line(area, "region", Level.WARNING, f"{text}; AWS_REGION is {ignored}", cure)
    return Line(area, "region", Level.OK, text)


def _endpoint_line(area: str, access: StorageAccess, environ: Mapping[str, str]) -> Line:
    proxy = proxy_of(access.endpoint, environ)
    via = f", through the proxy {proxy}" if proxy else ", without a proxy"
    return Line(area, "endpoint", Level.OK, f"{_without_password(access.endpoint)}{via}")


def proxy_of(endpoint: str, environ: Mapping[str, str]) -> str:
    """The proxy that the variables name for `endpoint`, with its variable and without a password; empty if none."""
    url = urlsplit(endpoint)
    if _goes_direct(url.hostname or "", environ.get("no_proxy") or environ.get("NO_PROXY") or ""):
        return ""
    for name in (f"{url.scheme}_proxy", f"{url.scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"):
        if value := environ.get(name):
            return f"{_without_password(value)} ({name})"
    return ""


def _goes_direct(host: str, no_proxy: str) -> bool:
    """Whether the value of NO_PROXY names `host`, itself or by its domain."""
    entries = [entry.strip().lstrip(".").lower() for entry in no_proxy.split(",") if entry.strip()]
    return any(entry == "*" or host == entry or host.endswith(f".{entry}") for entry in entries)


def _without_password(address: str) -> str:
    url = urlsplit(address if "://" in address else f"//{address}")
    if "@" not in url.netloc:
        return address
    return urlunsplit(url._replace(netloc=f"***@{url.netloc.rpartition('@')[2]}")).removeprefix("//")


def _storage_clock_line(area: str, reading: StorageReading) -> Line:
    skew = reading.skew_s
    if skew is None:
        cure = "check the name, the network and the proxy; the calls below tell whether the storage can be reached"
        return Line(area, "clock", Level.WARNING, f"the storage told no time: {reading.skew_unknown}", cure)
    if abs(skew) < _NOTED_SKEW_S:
        return Line(area, "clock", Level.OK, "agrees with the storage's")
    level = Level.FAILED if abs(skew) > _LARGEST_SKEW_S else Level.WARNING
    text = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the storage's; 900 s make signatures invalid"
    return Line(area, "clock", level, text, "synchronise the clock of this machine (chrony, systemd-timesyncd)")


def _call_line(area: str, location: Location, access: StorageAccess, call: CallReading) -> Line:
    if not call.failure:
        return Line(area, call.name, Level.OK, f"allowed on {call.target}")
    cure = call.hint or "check the name of the bucket, the endpoint, the network and the proxy"
    if call.refused and location.scheme is Scheme.S3:
        cure = f"{cure}. The statement for a policy: {s3_statement(location, call.permission)}"
    elif call.refused:
        cure = f"{cure}: {gcs_command(location, access.identity)}"
    return Line(area, call.name, Level.FAILED, call.failure, cure)


def s3_statement(location: Location, permission: str) -> str:
    """The IAM statement that allows `permission` on this repository, and nothing else."""
    arn = f"arn:aws:s3:::{location.bucket}"
    resource = arn if permission == "s3:ListBucket" else f"{arn}/{location.prefix}/*" if location.prefix else f"{arn}/*"
    return json.dumps({"Effect": "Allow", "Action": permission, "Resource": resource})


def gcs_command(location: Location, identity: str) -> str:
    """The command that grants the role to `identity`, as `GcsClient.identity` names it."""
    kind, _, email = identity.rpartition(" ")
    members = {"service account": f"serviceAccount:{email}", "user": f"user:{email}"}
    member = "allUsers" if identity == "anonymous" else members.get(kind, "MEMBER")
    command = f"gcloud storage buckets add-iam-policy-binding gs://{location.bucket}"
    return f"{command} --member={member} --role={_GCS_ROLE}"


_ENDPOINT_TIMEOUT_S = 10.0
_LISTING = {Scheme.S3: ("ListObjectsV2", "s3:ListBucket"), Scheme.GS: ("objects.list", "storage.objects.list")}
_READING = {Scheme.S3: ("GetObject", "s3:GetObject"), Scheme.GS: ("objects.get", "storage.objects.get")}
_HEAD = ("HeadObject", "s3:GetObject")


def read_storage(location: Location, credential_path: str, environ: Mapping[str, str]) -> StorageReading:
    """Make each call once. Takes seconds if the storage or a metadata server does not answer. For cloud locations."""
    try:
        store = open_store(location, read_cloud_credentials(credential_path).credentials_for(location))
        store.access()
    except (ServerError, TransientError) as error:
        return StorageReading(location, None, *_error_texts(error))
    found: list[StoredObject] = []
    calls = list(_calls(location, store, found))
    # After the calls: a metadata server's identity is known after its first token.
    access = store.access()
    try:
        skew, unknown = clock_skew(access.endpoint, environ.get("AWS_CA_BUNDLE", "")), ""
    except (OSError, ValueError) as error:
        skew, unknown = None, str(getattr(error, "reason", error))
    folders = frozenset(stored.key.partition("/")[0] for stored in found if "/" in stored.key)
    return StorageReading(location, access, calls=calls, folders=folders, skew_s=skew, skew_unknown=unknown)


def clock_skew(endpoint: str, ca_file: str = "", now: Callable[[], float] = time.time) -> float:
    """The local time minus the one in the Date header of `endpoint`, in seconds. Raises OSError, ValueError."""
    context = ssl.create_default_context(cafile=ca_file or None)
    opener = build_opener(_NoRedirect, HTTPSHandler(context=context))
    try:
        with opener.open(Request(endpoint, method="HEAD"), timeout=_ENDPOINT_TIMEOUT_S) as answer:
            date = answer.headers.get("Date", "")
    except HTTPError as error:  # any answer has the time
        with error:
            date = error.headers.get("Date", "")
    if not date:
        raise ValueError("the answer has no Date header")
    return now() - parsedate_to_datetime(date).timestamp()


class _NoRedirect(HTTPRedirectHandler):
    """Amazon redirects the root of S3 to a page for people."""

    def redirect_request(self, *arguments: object, **named: object) -> None:
        return None


def _calls(location: Location, store: S3Store | GcsStore, found: list[StoredObject]) -> Iterator[CallReading]:
    """Lists the objects into `found`, and reads the smallest one that is not empty."""
    yield _call(*_LISTING[location.scheme], location.text, lambda: found.extend(store.list()))
    stored = min((each for each in found if each.size), key=lambda each: each.size, default=None)
    if stored is None:
        return
    target = f"{location.text}/{stored.key}"
    if location.scheme is Scheme.S3:
        yield _call(*_HEAD, target, lambda: store.checksum(stored))
    yield _call(*_READING[location.scheme], target, lambda: list(store.read(stored, 0, 1)))


def _call(name: str, permission: str, target: str, make: Callable[[], object]) -> CallReading:
    try:
        make()
    except (ServerError, TransientError) as error:
        return CallReading(name, permission, target, *_error_texts(error), refused=isinstance(error, AccessRefused))
    return CallReading(name, permission, target)


def _error_texts(error: ServerError | TransientError) -> tuple[str, str]:
    """The message and the hint."""
    if isinstance(error, ServerError):
        return error.message, error.hint or ""
    return f"no answer: {error}", "check the endpoint, the network and the proxy; run this again"


_AREA = "GPU"
_SHOWN = 5
_DRIVER_CURE = (
    "install NVIDIA's driver, and start the container with the GPUs (docker run --gpus all, or nvidia.com/gpu in "
    "Kubernetes)"
)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """`driver` is the reason if there is none. `usable` are the CUDA numbers of the GPUs that the server may use.

    `support` is by the backend's name: its providers, or the reason why its framework cannot be imported.
    """

    driver: DriverReading | str
    usable: Sequence[int]
    support: Mapping[str, DeviceSupport | str]


def read_gpu(settings: ServerSettings) -> GpuReading:
    """Load the driver and the frameworks; takes seconds."""
    usable = gpu_ids(settings.min_supported_compute_capability)
    return GpuReading(read_driver(settings.visible_gpus), usable, device_support())


def gpu_lines(reading: GpuReading, asked_by: Sequence[str]) -> list[Line]:
    """`asked_by` are the models whose configuration asks for a GPU."""
    asked = f"; asked for by {_names(asked_by)}" if asked_by else ""
    lines = [_driver_line(reading, asked)]
    for name, support in reading.support.items():
        if isinstance(support, str):
            cure = "install trident-inference with the extra that brings it, such as trident-inference[cpu]"
            lines.append(Line(_AREA, f"backend {name}", Level.FAILED, f"cannot be imported: {support}", cure))
            continue
        lines.append(Line(_AREA, f"backend {name}", Level.OK, support.framework))
        lines += [_provider_line(each, bool(reading.usable), asked) for each in support.providers]
    return lines


def _driver_line(reading: GpuReading, asked: str) -> Line:
    driver, usable = reading.driver, len(reading.usable)
    if isinstance(driver, str) and not usable:
        if asked:
            return Line(_AREA, "driver", Level.FAILED, f"no GPU ({driver}){asked}", _DRIVER_CURE)
        return Line(_AREA, "driver", Level.OK, "no GPU, and none is asked for: models run on the CPU")
    if isinstance(driver, str):
        text = f"{_gpu_count(usable)}, but their state cannot be read ({driver})"
        return Line(_AREA, "driver", Level.WARNING, text, "give the container the driver's utility libraries")
    sizes = ", ".join(size_text(size) for size in driver.gpu_bytes if size)
    text = f"{driver.version}, CUDA up to {driver.cuda}, {_gpu_count(usable)}" + (f" ({sizes})" if sizes else "")
    if usable:
        return Line(_AREA, "driver", Level.OK, text)
    cure = "check CUDA_VISIBLE_DEVICES and --min-supported-compute-capability; `nvidia-smi` shows what the driver sees"
    return Line(_AREA, "driver", Level.FAILED if asked else Level.WARNING, f"{text} that can be used{asked}", cure)


def _provider_line(state: ProviderState, has_gpu: bool, asked: str) -> Line:
    if state.installed and not state.problem:
        return Line(_AREA, state.name, Level.OK, "its libraries load")
    is_for_gpus = state.name.startswith("CUDA")
    if state.installed:
        level = Level.FAILED if is_for_gpus and (asked or has_gpu) else Level.WARNING
        return Line(_AREA, state.name, level, f"cannot be loaded: {state.problem}", state.cure)
    text = "not in this installation"
    if is_for_gpus and asked:
        return Line(_AREA, state.name, Level.FAILED, f"{text}{asked}", state.cure)
    if is_for_gpus and has_gpu:
        return Line(_AREA, state.name, Level.WARNING, f"{text}: models run on the CPU", state.cure)
    return Line(_AREA, state.name, Level.OK, f"{text}, and not asked for" if is_for_gpus else f"{text} (optional)")


def _gpu_count(gpus: int) -> str:
    return f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


_LIMITS_AREA = "Limits"
_FEW_CONNECTIONS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReading:
    """`cores` are those that the process may use, `affinity` those on which it may run at all.

    `room` is None if the system does not tell. `open_files` is the hard limit. `temporary` is the directory of
    temporary files, empty if there is none. `in_memory_bytes` is the size of /dev/shm, 0 without it.
    """

    cores: float
    affinity: int
    room: MemoryRoom | None
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
        room=host_room(),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        temporary=temporary,
        in_memory_bytes=in_memory,
        topology=choose_topology(settings),
        worker_bytes=settings.http_worker_memory_bytes,
    )


def limit_lines(reading: LimitReading, sessions: int) -> list[Line]:
    """`sessions` is the number of models that would be loaded."""
    lines = [_cpu_line(reading, sessions), _memory_line(reading.room), _workers_line(reading)]
    return [*lines, _temporary_line(reading), _files_line(reading.open_files)]


def _cpu_line(reading: LimitReading, sessions: int) -> Line:
    plan = plan_threads(reading.cores / reading.topology.engines, max(1, sessions))
    shared = "a session gets" if sessions <= 1 else f"each of {sessions} sessions gets"
    quota = f" (a quota; {reading.affinity} are visible)" if reading.cores < reading.affinity else ""
    text = f"{reading.cores:g} cores{quota}; {shared} {plan.intra_op_threads} threads"
    if reading.cores < 1:
        return Line(
            _LIMITS_AREA, "CPU", Level.WARNING, text, "give the container at least one core: requests are throttled"
        )
    return Line(_LIMITS_AREA, "CPU", Level.OK, text)


def _memory_line(room: MemoryRoom | None) -> Line:
    if room is None:
        return Line(_LIMITS_AREA, "memory", Level.WARNING, "the system does not tell its limit", "make /proc readable")
    return Line(_LIMITS_AREA, "memory", Level.OK, f"{size_text(room.free)} free of {size_text(room.total)}")


def _workers_line(reading: LimitReading) -> Line:
    workers, engines = reading.topology.http_workers, reading.topology.engines
    if not workers:
        return Line(_LIMITS_AREA, "processes", Level.OK, str(reading.topology))
    shared = workers * engines * reading.worker_bytes
    those = "the engine" if engines == 1 else "the engines"
    text = f"{reading.topology}; they share up to {size_text(shared)} with {those}, which count to the memory"
    # The shared memory is a memfd: the size of /dev/shm does not limit it, the container's memory does.
    if reading.room is not None and shared > reading.room.free:
        return Line(
            _LIMITS_AREA, "processes", Level.WARNING, text, "lower --http-worker-memory-bytes or --http-workers"
        )
    return Line(_LIMITS_AREA, "processes", Level.OK, text)


def _temporary_line(reading: LimitReading) -> Line:
    if not reading.temporary:
        cure = "set TMPDIR to a folder that can be written; in Kubernetes mount an emptyDir at /tmp"
        return Line(_LIMITS_AREA, "temporary files", Level.FAILED, "no folder for them can be written", cure)
    if reading.temporary == IN_MEMORY:
        text = f"they are kept in memory, in {IN_MEMORY}, which has {size_text(reading.in_memory_bytes)}"
        return Line(_LIMITS_AREA, "temporary files", Level.WARNING, text, "set TMPDIR to use another directory")
    return Line(_LIMITS_AREA, "temporary files", Level.OK, f"in {reading.temporary}")


def _files_line(limit: int) -> Line:
    places = connection_places(limit)
    shown = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
    text = f"{shown}, which allows {places} connections"
    if places < _FEW_CONNECTIONS:
        cure = "raise the hard limit: `ulimit -Hn`, `docker run --ulimit nofile=65536`, or LimitNOFILE of systemd"
        return Line(_LIMITS_AREA, "open files", Level.WARNING, text, cure)
    return Line(_LIMITS_AREA, "open files", Level.OK, text)


_PORTS_AREA = "Ports"


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
                server = running_server(f"http://{_reachable(address)}:{port}")
        readings.append(PortReading(name, address, port, failure, owner, server, option))
    running = next((each for each in readings if each.server), None)
    if running is None or not running.owner:
        return readings
    return [replace(each, server=running.server) if each.owner == running.owner else each for each in readings]


def _reachable(address: str) -> str:
    """The address at which a server that listens on `address` is asked from this machine."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]", "": "127.0.0.1"}.get(address, address)


def port_lines(readings: Iterable[PortReading]) -> list[Line]:
    return [_line(reading) for reading in readings]


def _line(reading: PortReading) -> Line:
    check = reading.service if reading.service.isupper() else reading.service[0].upper() + reading.service[1:]
    where = spell_endpoint(reading.address, reading.port)
    if not reading.failure:
        return Line(_PORTS_AREA, check, Level.OK, f"{where} is free")
    if reading.server:
        text = f"{where} is that of a running server, {reading.server} ({reading.owner or 'of another user'})"
        return Line(
            _PORTS_AREA,
            check,
            Level.WARNING,
            text,
            f"`trident doctor URL` asks it; a second server needs {reading.option}",
        )
    text = reading.failure + (f", by {reading.owner}" if reading.owner else "")
    return Line(_PORTS_AREA, check, Level.FAILED, text, f"stop the process that has the port, or set {reading.option}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryReading:
    """One repository. `models` are the files by model; `failure` and `hint` are of a repository that cannot be read.

    `ignored` are folders that the server leaves out. `asking_for_gpu` are models whose configuration asks for one.
    `refused` is the number of models that `trident validate` refuses, None if it was not asked; with `must_load` a
    server exits if one of them fails to load.
    """

    location: Location
    models: Mapping[str, Sequence[SourceFile]] = field(default_factory=dict)
    failure: str = ""
    hint: str = ""
    ignored: Sequence[str] = ()
    asking_for_gpu: Sequence[str] = ()
    refused: int | None = None
    is_single: bool = False
    must_load: bool = True

    @property
    def load_bytes(self) -> int:
        """The size of what a start loads by default: of each model the newest version and the files beside it."""
        return sum(_load_bytes(files) for files in self.models.values())


def read_repository(
    location: Location, settings: ServerSettings, folders: Collection[str] | None = None
) -> RepositoryReading:
    """Scan the repository as a server would; a local one is validated too, which loads its models one by one.

    `folders` are the names of its folders, which only a local repository can do without.
    """
    options = SourceOptions(
        cache_directory=Path(settings.model_cache_directory),
        cache_bytes=settings.model_cache_bytes,
        credential_path=settings.cloud_credential_path,
    )
    opener = SourceOpener(options)
    try:
        source = opener.open(location.text, any_layout=settings.any_layout, single_model=settings.single_model)
        models = source.scan()
        if not models and settings.model_control_mode == "none":
            source.check_exists()
        named = set(model_names(Path(location.text)) if folders is None else folders)
    except ServerError as error:
        return RepositoryReading(location=location, failure=error.message, hint=error.hint or "")
    finally:
        opener.stop()
    is_single = not set(models) <= named
    local = location.scheme is Scheme.LOCAL and not is_single
    return RepositoryReading(
        location=location,
        models=models,
        ignored=[] if is_single else sorted(named - set(models)),
        asking_for_gpu=_asking_for_gpu(Path(location.text), models, settings) if local else (),
        refused=_refused(location.text, settings) if local else None,
        is_single=is_single,
        must_load=settings.exit_on_error and settings.model_control_mode != "explicit",
    )


def repository_lines(reading: RepositoryReading) -> list[Line]:
    area = f"Repository {reading.location.text}"
    if reading.failure:
        return [Line(area, "models", Level.FAILED, reading.failure, reading.hint)]
    lines = [_models_line(area, reading)]
    if reading.ignored:
        text = f"{_names(reading.ignored)}: a server leaves out folders of these names"
        lines.append(Line(area, "ignored", Level.WARNING, text, "rename them if they are models"))
    strangers = [name for name, files in reading.models.items() if not can_be_model(file.path for file in files)]
    if strangers:
        text = f"{_names(strangers)}: without a configuration or a version, so loading fails"
        cure = "move them out of the repository: a server loads every folder in it"
        lines.append(Line(area, "no models", Level.WARNING, text, cure))
    if others := _other_versions(reading.models):
        text = f"{_names(others)}: their names are no numbers, so a server ignores them"
        lines.append(Line(area, "no versions", Level.WARNING, text, "a version's folder is named 1, 2, 3 and so on"))
    if reading.refused is not None:
        lines.append(_validation_line(area, reading))
    return lines


def room_lines(
    readings: Sequence[RepositoryReading], free_memory: int | None, cache: CacheReading | None
) -> list[Line]:
    """The models' size against `free_memory` in bytes and, if a repository is in the cloud, against the disk."""
    total = sum(reading.load_bytes for reading in readings)
    lines = [_model_memory_line(total, free_memory)] if free_memory is not None and total else []
    return [*lines, _cache_line(cache, readings)] if cache is not None else lines


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReading:
    """The model cache: its directory, its limit (0: none), the bytes in it, and the bytes free on its disk."""

    directory: str
    max_bytes: int
    used: int
    free: int


def read_cache(settings: ServerSettings) -> CacheReading:
    """Raises OSError."""
    directory = Path(settings.model_cache_directory)
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return CacheReading(
        directory=str(directory),
        max_bytes=settings.model_cache_bytes,
        used=CacheContents(directory).used if directory.exists() else 0,
        free=free_bytes(existing),
    )


def _models_line(area: str, reading: RepositoryReading) -> Line:
    if not reading.models:
        return Line(area, "models", Level.WARNING, "there is no model", no_models_hint(reading.location.text))
    versions = sum(len(_versions(files)) for files in reading.models.values())
    size = sum(file.size for files in reading.models.values() for file in files)
    text = f"{_counted(len(reading.models), 'model')}, {_counted(versions, 'version')}, {size_text(size)}"
    return Line(area, "models", Level.OK, text + (", without a repository around it" if reading.is_single else ""))


def _validation_line(area: str, reading: RepositoryReading) -> Line:
    if not reading.refused:
        return Line(area, "validation", Level.OK, "every model would load")
    text = f"{_counted(reading.refused, 'model')} of {len(reading.models)} would be refused"
    level = Level.FAILED if reading.must_load else Level.WARNING
    return Line(area, "validation", level, text, f"trident validate {reading.location.text}")


def _model_memory_line(total: int, free: int) -> Line:
    text = f"a start loads {size_text(total)} of files; {size_text(free)} of memory are free"
    if total > free:
        cure = "give the container more memory, or load fewer models (--model-control-mode=explicit)"
        return Line("Room", "memory", Level.WARNING, text, cure)
    return Line("Room", "memory", Level.OK, text)


def _cache_line(cache: CacheReading, readings: Sequence[RepositoryReading]) -> Line:
    needed = sum(reading.load_bytes for reading in readings if reading.location.scheme is not Scheme.LOCAL)
    text = f"{size_text(needed)} for {cache.directory}, which has {size_text(cache.used)}; {size_text(cache.free)} free"
    if needed > cache.free + cache.used:
        cure = "free space there, or name a folder on a larger disk with --model-cache-directory"
        return Line("Room", "disk", Level.FAILED, text, cure)
    if cache.max_bytes and needed > cache.max_bytes:
        return Line("Room", "disk", Level.WARNING, text, f"raise --model-cache-bytes, which is {cache.max_bytes}")
    return Line("Room", "disk", Level.OK, text)


def _refused(repository: str, settings: ServerSettings) -> int:
    options = ValidateOptions(
        repositories=(repository,),
        config_name=settings.model_config_name,
        auto_complete=not settings.disable_auto_complete_config,
        backend_config=settings.backend_config,
    )
    check = make_check(options)
    findings = examine(options.repositories, check, together=check.together).findings
    return len({each.model for each in findings if each.model})


def _asking_for_gpu(path: Path, models: Mapping[str, Sequence[SourceFile]], settings: ServerSettings) -> list[str]:
    asking = []
    for name in models:
        try:
            config = read_config(ModelDirectory(name, path / name), config_name=settings.model_config_name)
        except ServerError:  # counted by the validation
            continue
        if _asks_for_gpu(config):
            asking.append(name)
    return asking


def _asks_for_gpu(config: ModelConfig) -> bool:
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    return bool(accelerators) or any(
        group.kind == ModelInstanceGroup.KIND_GPU or group.gpus for group in config.instance_group
    )


def _versions(files: Sequence[SourceFile]) -> set[int]:
    found = (version_number(file.path.partition("/")[0]) for file in files if "/" in file.path)
    return {version for version in found if version is not None}


def _load_bytes(files: Sequence[SourceFile]) -> int:
    newest = max(_versions(files), default=None)
    versions = ((version_number(file.path.partition("/")[0]), file.size) for file in files)
    return sum(size for version, size in versions if version in (None, newest))


def _other_versions(models: Mapping[str, Sequence[SourceFile]]) -> list[str]:
    """`MODEL/FOLDER` of each folder with a model file whose name is no version."""
    return sorted(
        {
            f"{name}/{folder}"
            for name, files in models.items()
            for folder, slash, rest in (file.path.partition("/") for file in files)
            if slash and version_number(folder) is None and rest.partition("/")[0].startswith("model.")
        }
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


JSON = Option(flag="json", kind=FLAG, help="Print the report as JSON.", own=True)
_JSON_FLAG = f"--{JSON.flag}"
_URLS = ("http://", "https://")


def doctor(arguments: Sequence[str]) -> int:
    """Print the report; the arguments are `--json` and those of `serve`, or the URLs of servers that run.

    Returns 1 if a line has failed, otherwise 0. Raises BadOption.
    """
    urls = [each for each in arguments if each.startswith(_URLS)]
    of_serve = [each for each in arguments if each != _JSON_FLAG and each not in urls]
    settings = read_settings(with_repositories(of_serve), needs_repository=False)
    _log_nothing()
    disable_telemetry()
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
            storages.append(Line("Repository", "address", Level.FAILED, error.message, error.hint or ""))
            continue
        if location.scheme is Scheme.LOCAL:
            repositories.append(read_repository(location, settings))
            continue
        storage = read_storage(location, settings.cloud_credential_path, environ)
        found = storage_lines(storage, environ)
        storages += found
        if not has_failed(found):  # otherwise the scan would fail in the same way, after more attempts
            repositories.append(read_repository(location, settings, storage.folders))
    limits = read_limits(settings)
    on_cpu = settings.gpu_missing == "cpu"
    asked_by = [] if on_cpu else [name for reading in repositories for name in reading.asking_for_gpu]
    free_memory = limits.room.free if limits.room is not None else None
    return [
        *storages,
        *(line for reading in repositories for line in repository_lines(reading)),
        *_room_lines(repositories, free_memory, settings),
        *limit_lines(limits, sum(len(reading.models) for reading in repositories)),
        *port_lines(read_ports(settings.services())),
        *gpu_lines(read_gpu(settings), asked_by),
    ]


def _room_lines(
    repositories: Sequence[RepositoryReading], free_memory: int | None, settings: ServerSettings
) -> list[Line]:
    in_cloud = any(reading.location.scheme is not Scheme.LOCAL for reading in repositories)
    try:
        return room_lines(repositories, free_memory, read_cache(settings) if in_cloud else None)
    except OSError as error:
        cure = "name a folder that can be written with --model-cache-directory"
        failure = f"the model cache {settings.model_cache_directory} cannot be read: {error.strerror}"
        return [*room_lines(repositories, free_memory, None), Line("Room", "disk", Level.FAILED, failure, cure)]


def _log_nothing() -> None:
    """The report has everything that a log would say."""
    from trident.core.observability.log import LogOptions, configure_logging

    configure_logging(LogOptions(info=False, warning=False, error=False))
