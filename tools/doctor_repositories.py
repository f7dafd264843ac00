"""The lines of the doctor's report, and its look at model repositories and at the cloud storages that have them."""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from trident.app.settings.server import ServerSettings
from trident.app.terminal import counted
from trident.core.config.platforms import fill_platform
from trident.core.config.schema import ModelConfig
from trident.core.errors import AccessRefused, NotInstalled, ServerError
from trident.core.repository.cache import CacheContents, free_bytes
from trident.core.repository.cloud_sources import open_store
from trident.core.repository.config import read_config
from trident.core.repository.layout_hints import no_models_hint
from trident.core.repository.layouts import can_be_model
from trident.core.repository.location import Location, Scheme
from trident.core.repository.opener import SourceOpener, SourceOptions
from trident.core.repository.repository import ModelDirectory, model_names, version_number, version_of
from trident.core.repository.sources import UNREADABLE, SourceFile
from trident.core.repository.stores.object_store import (
    RegionOrigin,
    StorageAccess,
    StoredObject,
    TransientError,
    read_cloud_credentials,
)
from trident.tools.validate import RepositoryCheck, ValidateOptions, examine

if TYPE_CHECKING:
    from trident.core.repository.stores.azure import AzureStore
    from trident.core.repository.stores.gcs import GcsStore
    from trident.core.repository.stores.s3 import S3Store


_SHOWN = 5
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Severity(StrEnum):
    """Severity of a line. Only FAILED sets the exit status."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the page. Lines of one `area` stand together; `cure` says what to do about a line that is not OK."""

    area: str
    check: str
    level: Severity
    text: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Area:
    """Makes the lines of one area."""

    name: str

    def line(self, level: Severity, check: str, text: str, cure: str = "") -> Line:
        return Line(self.name, check, level, text, cure)

    def ok(self, check: str, text: str) -> Line:
        return self.line(Severity.OK, check, text)

    def warning(self, check: str, text: str, cure: str) -> Line:
        return self.line(Severity.WARNING, check, text, cure)

    def failed(self, check: str, text: str, cure: str) -> Line:
        return self.line(Severity.FAILED, check, text, cure)

    def judged(self, check: str, text: str, cure: str, *, bad: bool, level: Severity = Severity.WARNING) -> Line:
        """OK, unless it is bad: then of this level, with the cure."""
        return self.line(level, check, text, cure) if bad else self.ok(check, text)


def size_text(count: int) -> str:
    """`count` bytes in the largest binary unit that fits, such as `1.5 GiB`."""
    power = min(max(0, count.bit_length() - 1) // 10, 4)
    value = count / 1024**power
    return f"{value:.3g} {_UNITS[power]}" if value < 999.5 else f"{value:.0f} {_UNITS[power]}"


def first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryReading:
    """One repository. `models` are the files by model; `failure` and `hint` are of a repository that cannot be read.

    `ignored` are folders that the server leaves out. `asking_for_gpu` are models whose configuration asks for one.
    `unreadable` are paths of files and folders below it that the server may not read.
    `backends` are the models by their backends, and `not_installed` why the framework of one cannot be used.
    `refused` is the number of models that `trident validate` refuses, None if it was not asked; with `must_load` a
    server exits if one of them fails to load.
    """

    location: Location
    models: Mapping[str, Sequence[SourceFile]] = field(default_factory=dict)
    failure: str = ""
    hint: str = ""
    ignored: Sequence[str] = ()
    asking_for_gpu: Sequence[str] = ()
    unreadable: Sequence[str] = ()
    backends: Mapping[str, Sequence[str]] = field(default_factory=dict)
    not_installed: Mapping[str, NotInstalled] = field(default_factory=dict)
    refused: int | None = None
    is_single: bool = False
    must_load: bool = True

    @property
    def load_bytes(self) -> int:
        """The size of what a start loads by default: of each model the newest version and the files beside it."""
        total = 0
        for files in self.models.values():
            newest = max(_versions(files), default=None)
            versions = ((version_number(file.path.partition("/")[0]), file.size) for file in files)
            total += sum(size for version, size in versions if version in (None, newest))
        return total


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
        signature_key=Path(settings.model_signature) if settings.model_signature else None,
    )
    opener = SourceOpener(options)
    try:
        source = opener.open(location.text, any_layout=settings.any_layout, single_model=settings.single_model)
        models = source.scan()
        if settings.model_signature and location.scheme is Scheme.LOCAL:
            for name, files in models.items():  # before the validation reads them
                for version in {version_of(file.path) for file in files}:
                    source.fetch(name, files, version).release()
        if not models and settings.model_control_mode == "none":
            source.check_exists()
        named = set(model_names(Path(location.text)) if folders is None else folders)
    except ServerError as error:
        return RepositoryReading(location=location, failure=error.message, hint=error.hint or "")
    finally:
        opener.stop()
    is_single = not set(models) <= named
    local = location.scheme is Scheme.LOCAL and not is_single
    check = RepositoryCheck(
        ValidateOptions(
            repositories=(location.text,),
            config_name=settings.model_config_name,
            auto_complete=not settings.disable_auto_complete_config,
            backend_config=settings.backend_config,
            backend_directory=settings.backend_directory,
            gpu_missing=settings.gpu_missing,
        )
    )
    findings = examine((location.text,), check).findings if local else ()
    return RepositoryReading(
        location=location,
        models=models,
        ignored=[] if is_single else sorted(named - set(models)),
        unreadable=[
            f"{name}/{each.path}" for name, files in models.items() for each in files if each.tag.startswith(UNREADABLE)
        ],
        asking_for_gpu=_asking_for_gpu(Path(location.text), models, settings) if local else (),
        backends=check.backends if local else _backends_by_files(models),
        not_installed=check.not_installed,
        refused=len({each.model for each in findings if each.model}) if local else None,
        is_single=is_single,
        must_load=settings.exit_on_error and settings.model_control_mode != "explicit",
    )


def _backends_by_files(models: Mapping[str, Sequence[SourceFile]]) -> Mapping[str, Sequence[str]]:
    """The models by the backend that their files tell; without their configurations, which were not read."""
    found: dict[str, list[str]] = {}
    for name, files in models.items():
        paths = [file.path.split("/") for file in files]
        config = ModelConfig(name=name)
        fill_platform(config, {path[0] for path in paths} | {path[1] for path in paths if len(path) > 1})
        if config.backend:
            found.setdefault(config.backend, []).append(name)
    return found


def _asking_for_gpu(path: Path, models: Mapping[str, Sequence[SourceFile]], settings: ServerSettings) -> list[str]:
    asking = []
    for name in models:
        try:
            config = read_config(ModelDirectory(name, path / name), config_name=settings.model_config_name)
        except ServerError:  # counted by the validation
            continue
        accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
        on_gpu = [group for group in config.instance_group if group.kind == group.KIND_GPU or group.gpus]
        if accelerators or on_gpu:
            asking.append(name)
    return asking


def repository_lines(reading: RepositoryReading) -> Iterator[Line]:
    area = Area(f"Repository {reading.location.text}")
    level = Severity.FAILED if reading.must_load else Severity.WARNING
    if reading.failure:
        yield area.failed("models", reading.failure, reading.hint)
        return
    if reading.models:
        versions = sum(len(_versions(files)) for files in reading.models.values())
        size = sum(file.size for files in reading.models.values() for file in files)
        text = f"{counted(len(reading.models), 'model')}, {counted(versions, 'version')}, {size_text(size)}"
        yield area.ok("models", text + (", without a repository around it" if reading.is_single else ""))
    else:
        yield area.warning("models", "there is no model", no_models_hint(reading.location.text))
    if reading.ignored:
        text = f"{first_names(reading.ignored)}: a server leaves out folders of these names"
        yield area.warning("ignored", text, "rename them if they are models")
    if reading.unreadable:
        text = f"{first_names(reading.unreadable)}: not readable by user {os.geteuid()}"
        yield area.line(level, "permissions", text, f"chmod -R a+rX {reading.location.text}")
    strangers = {name for name, files in reading.models.items() if not can_be_model(file.path for file in files)}
    strangers -= {Path(each).parts[0] for each in reading.unreadable}
    if strangers:
        text = f"{first_names(sorted(strangers))}: without a configuration or a version, so loading fails"
        yield area.warning("no models", text, "move them out of the repository: a server loads every folder in it")
    if others := sorted(
        {
            f"{name}/{folder}"
            for name, files in reading.models.items()
            for folder, slash, rest in (file.path.partition("/") for file in files)
            if slash and version_number(folder) is None and rest.partition("/")[0].startswith("model.")
        }
    ):
        text = f"{first_names(others)}: their names are no numbers, so a server ignores them"
        yield area.warning("no versions", text, "a version's folder is named 1, 2, 3 and so on")
    if reading.refused:
        text = f"{counted(reading.refused, 'model')} of {len(reading.models)} would be refused"
        yield area.line(level, "validation", text, f"trident validate {reading.location.text}")
    elif reading.refused is not None:
        yield area.ok("validation", "every model would load" + (" with its framework" * bool(reading.not_installed)))
    for backend, missing in reading.not_installed.items():
        text = f"{first_names(reading.backends[backend])}: {missing.message}"
        yield area.line(level, f"backend {backend}", text, missing.hint or "")


def _versions(files: Sequence[SourceFile]) -> set[int]:
    found = (version_number(file.path.partition("/")[0]) for file in files if "/" in file.path)
    return {version for version in found if version is not None}


# --- the models' size against memory and disk
_ROOM = Area("Room")
# A disk with less may be full before somebody looks.
_LITTLE = 1 << 30


def file_lines(settings: ServerSettings, free_on: Callable[[Path], int] = free_bytes) -> Iterator[Line]:
    """The disks of the log and of the traces, where options name files."""
    named = {"log": ("--log-file", settings.log_file), "traces": ("--trace-config", settings.trace_options.file)}
    for check, (option, file) in named.items():
        if not file:
            continue
        folder = Path(file).absolute().parent
        if not os.access(folder, os.W_OK | os.X_OK):
            reason = "cannot be written" if folder.is_dir() else "does not exist"
            yield _ROOM.failed(check, f"{folder}, the folder of {file}, {reason}", f"make it, or change {option}")
            continue
        free = free_on(folder)
        cure = f"free space there, or name a larger disk with {option}"
        yield _ROOM.judged(check, f"{file}: {size_text(free)} free", cure, bad=free < _LITTLE)


def room_lines(
    readings: Sequence[RepositoryReading],
    free_memory: int | None,
    settings: ServerSettings,
    free_on: Callable[[Path], int] = free_bytes,
) -> Iterator[Line]:
    """The models' size against `free_memory` in bytes, and that of models in the cloud against the disk of the cache.

    `free_on` returns the number of bytes that are free on the disk of a path.
    """
    total = sum(reading.load_bytes for reading in readings)
    if free_memory is not None and total:
        text = f"a start loads {size_text(total)} of files; {size_text(free_memory)} of memory are free"
        cure = "give the container more memory, or load fewer models (--model-control-mode=explicit)"
        yield _ROOM.judged("memory", text, cure, bad=total > free_memory)
    in_cloud = [reading for reading in readings if reading.location.scheme is not Scheme.LOCAL]
    if not in_cloud:
        return
    directory, most = Path(settings.model_cache_directory), settings.model_cache_bytes
    try:
        existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
        used = CacheContents(directory).used if directory.exists() else 0
        free = free_on(existing)
    except OSError as error:
        failure = f"the model cache {directory} cannot be read: {error.strerror}"
        yield _ROOM.failed("disk", failure, "name a folder that can be written with --model-cache-directory")
        return
    needed = sum(reading.load_bytes for reading in in_cloud)
    text = f"{size_text(needed)} for {directory}, which has {size_text(used)}; {size_text(free)} free"
    if needed > free + used:
        cure = "free space there, or name a folder on a larger disk with --model-cache-directory"
        yield _ROOM.failed("disk", text, cure)
    else:
        cure = f"raise --model-cache-bytes, which is {most}"
        yield _ROOM.judged("disk", text, cure, bad=bool(most) and needed > most)


# --- cloud storage: who the server is there, what it may do, and the clocks
NOTED_SKEW_S = 60.0
# S3 refuses a signature of another time than this, in seconds. Source: AWS, "RequestTimeTooSkewed".
_LARGEST_SKEW_S = 900.0
_ENDPOINT_TIMEOUT_S = 10.0
_GCS_ROLE = "roles/storage.objectViewer"
_AZURE_ROLE = "Storage Blob Data Reader"
_LISTING = {
    Scheme.S3: ("ListObjectsV2", "s3:ListBucket"),
    Scheme.GS: ("objects.list", "storage.objects.list"),
    Scheme.AS: ("list blobs", _AZURE_ROLE),
}
_READING = {
    Scheme.S3: ("GetObject", "s3:GetObject"),
    Scheme.GS: ("objects.get", "storage.objects.get"),
    Scheme.AS: ("get blob", _AZURE_ROLE),
}
_HEAD = ("HeadObject", "s3:GetObject")


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
    """The readings of one location. `access` is None without a usable credential; `failure` is the reason.

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


def _calls(
    location: Location, store: S3Store | GcsStore | AzureStore, found: list[StoredObject]
) -> Iterator[CallReading]:
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


def storage_lines(reading: StorageReading, environ: Mapping[str, str]) -> Iterator[Line]:
    """The lines of one location; `environ` are the variables of the process. No line has a secret."""
    area = Area(f"Storage {reading.location.text}")
    if reading.access is None:
        yield area.failed("credentials", reading.failure, reading.hint)
        return
    access, scheme = reading.access, reading.location.scheme
    yield area.ok("credentials", _identity(scheme, access, environ))
    if scheme is Scheme.S3:
        yield _region_line(area, access, environ)
    proxy = proxy_of(access.endpoint, environ)
    via = f", through the proxy {proxy}" if proxy else ", without a proxy"
    yield area.ok("endpoint", f"{_without_password(access.endpoint)}{via}")
    skew = reading.skew_s
    if skew is None:
        cure = "check the name, the network and the proxy; the calls below tell whether the storage can be reached"
        yield area.warning("clock", f"the storage told no time: {reading.skew_unknown}", cure)
    elif abs(skew) < NOTED_SKEW_S:
        yield area.ok("clock", "agrees with the storage's")
    else:
        level = Severity.FAILED if abs(skew) > _LARGEST_SKEW_S else Severity.WARNING
        text = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the storage's; 900 s make signatures invalid"
        yield area.line(level, "clock", text, "synchronise the clock of this machine (chrony, systemd-timesyncd)")
    for call in reading.calls:
        if not call.failure:
            yield area.ok(call.name, f"allowed on {call.target}")
            continue
        cure = call.hint or "check the name of the bucket, the endpoint, the network and the proxy"
        if call.refused and scheme is Scheme.S3:
            cure = f"{cure}. The statement for a policy: {s3_statement(reading.location, call.permission)}"
        elif call.refused and scheme is Scheme.GS:
            cure = f"{cure}: {gcs_command(reading.location, access.identity)}"
        yield area.failed(call.name, call.failure, cure)


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


def _identity(scheme: Scheme, access: StorageAccess, environ: Mapping[str, str]) -> str:
    if not access.credentials:
        if scheme is Scheme.GS and "STORAGE_EMULATOR_HOST" in environ:
            return "anonymous: STORAGE_EMULATOR_HOST names an emulator"
        return "anonymous: the standard chain has no credentials"
    profile = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    origin = {**_S3_ORIGINS, **_GCS_ORIGINS}.get(access.credentials, access.credentials).format(profile=profile)
    who = access.identity.partition(" from ")[0]
    if scheme is Scheme.GS and "GOOGLE_APPLICATION_CREDENTIALS" in environ:
        origin += f", GOOGLE_APPLICATION_CREDENTIALS={environ['GOOGLE_APPLICATION_CREDENTIALS']}"
    return f"{who}, from {origin}"


def _region_line(area: Area, access: StorageAccess, environ: Mapping[str, str]) -> Line:
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
    is_ignored = ignored not in ("", access.region)
    cure = f"set AWS_DEFAULT_REGION={ignored}; boto3 does not read AWS_REGION"
    return area.judged("region", text + f"; AWS_REGION is {ignored}" * is_ignored, cure, bad=is_ignored)


def proxy_of(endpoint: str, environ: Mapping[str, str]) -> str:
    """The proxy that the variables name for `endpoint`, with its variable and without a password; empty if none."""
    url = urlsplit(endpoint)
    host, direct = url.hostname or "", environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    entries = [entry.strip().lstrip(".").lower() for entry in direct.split(",") if entry.strip()]
    if any(entry == "*" or host == entry or host.endswith(f".{entry}") for entry in entries):
        return ""
    for name in (f"{url.scheme}_proxy", f"{url.scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"):
        if value := environ.get(name):
            return f"{_without_password(value)} ({name})"
    return ""


def _without_password(address: str) -> str:
    url = urlsplit(address if "://" in address else f"//{address}")
    if "@" not in url.netloc:
        return address
    return urlunsplit(url._replace(netloc=f"***@{url.netloc.rpartition('@')[2]}")).removeprefix("//")


def s3_statement(location: Location, permission: str) -> str:
    """The IAM statement that allows `permission` on this repository, and nothing else."""
    arn = f"arn:aws:s3:::{location.bucket}"
    resource = arn if permission == "s3:ListBucket" else f"{arn}/{location.prefix}/*" if location.prefix else f"{arn}/*"
    return json.dumps({"Effect": "Allow", "Action": permission, "Resource": resource})


def gcs_command(location: Location, identity: str) -> str:
    """The command that grants the role to `identity`, as `GcsStore.identity` names it."""
    kind, _, email = identity.rpartition(" ")
    members = {"service account": f"serviceAccount:{email}", "user": f"user:{email}"}
    member = "allUsers" if identity == "anonymous" else members.get(kind, "MEMBER")
    command = f"gcloud storage buckets add-iam-policy-binding gs://{location.bucket}"
    return f"{command} --member={member} --role={_GCS_ROLE}"
