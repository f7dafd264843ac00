"""Cloud storage: who the server is there, what it may do, and the clocks."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from trident.app.commands.doctor.report import Area, Level, Line
from trident.core.errors import AccessRefused, ServerError
from trident.core.repository.cloud_sources import open_store
from trident.core.repository.location import Location, Scheme
from trident.core.repository.stores.object_store import (
    RegionOrigin,
    StorageAccess,
    StoredObject,
    TransientError,
    read_cloud_credentials,
)

if TYPE_CHECKING:
    from trident.core.repository.stores.azure import AzureStore
    from trident.core.repository.stores.gcs import GcsStore
    from trident.core.repository.stores.s3 import S3Store


_NOTED_SKEW_S = 60.0
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
_AZURE_ROLE = "Storage Blob Data Reader"


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
    area = Area(f"Storage {reading.location.text}")
    if reading.access is None:
        return [area.failed("credentials", reading.failure, reading.hint)]
    access, scheme = reading.access, reading.location.scheme
    lines = [_identity_line(area, scheme, access, environ)]
    if scheme is Scheme.S3:
        lines.append(_region_line(area, access, environ))
    lines += [_endpoint_line(area, access, environ), _storage_clock_line(area, reading)]
    return [*lines, *(_call_line(area, reading.location, access, call) for call in reading.calls)]


def _identity_line(area: Area, scheme: Scheme, access: StorageAccess, environ: Mapping[str, str]) -> Line:
    if not access.credentials:
        text = "anonymous: the standard chain has no credentials"
        if scheme is Scheme.GS and "STORAGE_EMULATOR_HOST" in environ:
            text = "anonymous: STORAGE_EMULATOR_HOST names an emulator"
        return area.ok("credentials", text)
    profile = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    origin = {**_S3_ORIGINS, **_GCS_ORIGINS}.get(access.credentials, access.credentials).format(profile=profile)
    who = access.identity.partition(" from ")[0]
    if scheme is Scheme.GS and "GOOGLE_APPLICATION_CREDENTIALS" in environ:
        origin += f", GOOGLE_APPLICATION_CREDENTIALS={environ['GOOGLE_APPLICATION_CREDENTIALS']}"
    return area.ok("credentials", f"{who}, from {origin}")


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
    if ignored and ignored != access.region:
        cure = f"set AWS_DEFAULT_REGION={ignored}; boto3 does not read AWS_REGION"
        return area.warning("region", f"{text}; AWS_REGION is {ignored}", cure)
    return area.ok("region", text)


def _endpoint_line(area: Area, access: StorageAccess, environ: Mapping[str, str]) -> Line:
    proxy = proxy_of(access.endpoint, environ)
    via = f", through the proxy {proxy}" if proxy else ", without a proxy"
    return area.ok("endpoint", f"{_without_password(access.endpoint)}{via}")


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


def _storage_clock_line(area: Area, reading: StorageReading) -> Line:
    skew = reading.skew_s
    if skew is None:
        cure = "check the name, the network and the proxy; the calls below tell whether the storage can be reached"
        return area.warning("clock", f"the storage told no time: {reading.skew_unknown}", cure)
    if abs(skew) < _NOTED_SKEW_S:
        return area.ok("clock", "agrees with the storage's")
    level = Level.FAILED if abs(skew) > _LARGEST_SKEW_S else Level.WARNING
    text = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the storage's; 900 s make signatures invalid"
    return area.line(level, "clock", text, "synchronise the clock of this machine (chrony, systemd-timesyncd)")


def _call_line(area: Area, location: Location, access: StorageAccess, call: CallReading) -> Line:
    if not call.failure:
        return area.ok(call.name, f"allowed on {call.target}")
    cure = call.hint or "check the name of the bucket, the endpoint, the network and the proxy"
    if call.refused and location.scheme is Scheme.S3:
        cure = f"{cure}. The statement for a policy: {s3_statement(location, call.permission)}"
    elif call.refused and location.scheme is Scheme.GS:
        cure = f"{cure}: {gcs_command(location, access.identity)}"
    return area.failed(call.name, call.failure, cure)


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
