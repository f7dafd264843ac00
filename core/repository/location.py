"""The address of a model repository, parsed from one value of --model-repository.

    models, /models, C:models               a local folder, as written
    s3://bucket/prefix                      AWS S3, or the endpoint in AWS_ENDPOINT_URL_S3
    s3://host:port/bucket/prefix            an S3-compatible storage over HTTP
    s3://http://host:port/bucket/prefix     the same
    s3://https://host:port/bucket/prefix    over HTTPS; here the port is optional
    gs://bucket/prefix                      Google Cloud Storage
    as://account/container/prefix           Azure Blob Storage; the account may have .blob.core.windows.net behind it

The prefix is optional. Repeated slashes count as one; trailing slashes are ignored.

Source: docs/spec/repository.md section 1.10.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from trident.core.errors import ConfigInvalid

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
# The storages check their other rules themselves; this rejects characters that could change the meaning of a URL.
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
AZURE_HOST = ".blob.core.windows.net"
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LAST_PORT = 65535
_FORMS = (
    "a local path, s3://bucket/prefix, s3://[http[s]://]host:port/bucket/prefix, gs://bucket/prefix "
    "or as://account/container/prefix"
)


class Scheme(Enum):
    """The kind of storage; for object stores the value is the scheme of the URI."""

    LOCAL = "local"
    S3 = "s3"
    GS = "gs"
    AS = "as"


@dataclass(frozen=True, slots=True)
class Location:
    """The address of a model repository. It has no credentials, so it may be logged and shown.

    `text` is the path as given, or the URI in its normal form (single slashes, none at the end, no inner `http://`), so
    that two values for one place are equal. `bucket` and `prefix` are empty for a local folder. `prefix` neither begins
    nor ends with a slash; it is empty for the bucket's root. `endpoint_url` is empty unless the URI names an endpoint;
    Azure's always does, by the account, and its `bucket` is the container.
    """

    text: str
    scheme: Scheme
    endpoint_url: str = ""
    bucket: str = ""
    prefix: str = ""


class _Address(NamedTuple):
    """The parts of a URI after its scheme."""

    transport: str
    authority: str
    path: list[str]


def parse_location(text: str) -> Location:
    """Raises ConfigInvalid for a malformed value."""
    if not text or "\0" in text:
        raise ConfigInvalid("the model repository has no path", hint=f"give {_FORMS}")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Location(text, Scheme.LOCAL)
    match scheme[1].lower():
        case "s3":
            return _s3_location(_address(text))
        case "gs":
            address = _address(text)
            if address.transport or ":" in address.authority:
                raise ConfigInvalid(
                    f"gs://{address.transport}{address.authority} names an endpoint, which gs:// cannot have",
                    hint="write gs://bucket/prefix; set STORAGE_EMULATOR_HOST to use an emulator",
                )
            return _in_bucket(Scheme.GS, "", "", [address.authority, *address.path])
        case "as":
            return _azure_location(_address(text))
        case other:
            raise ConfigInvalid(f"unknown storage {other}:// in a model repository", hint=f"give {_FORMS}")


def uri_prefix(text: str) -> str:
    """Return the beginning of a URI in the normal form of `Location.text`, for comparison; a final slash stays."""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return text
    rest = text[scheme.end() :]
    transport = "https://" if rest.startswith("https://") else ""
    rest = re.sub("/+", "/", rest.removeprefix("https://").removeprefix("http://"))
    rest = rest.replace(f"{AZURE_HOST}/", "/", 1) if scheme[1].lower() == "as" else rest
    return f"{scheme[1].lower()}://{transport}{rest.removeprefix('/')}"


def _address(text: str) -> _Address:
    """Raises ConfigInvalid for a URI that has a password in it or that an HTTP client would read differently."""
    scheme, _, rest = text.partition("://")
    transport = next((each for each in ("http://", "https://") if rest.startswith(each)), "")
    authority, *path = [part for part in rest.removeprefix(transport).split("/") if part] or [""]
    if "@" in authority:
        # The message leaves out the text, which may contain a password.
        raise ConfigInvalid(
            f"the model repository {scheme}://… contains a user name or a password",
            hint="credentials come from the environment, a profile, a role, or TRITON_CLOUD_CREDENTIAL_PATH",
        )
    if _CONTROL.search(text) or any(part in (".", "..") for part in path):
        raise ConfigInvalid(
            f"the model repository {text!r} has '.', '..' or a control character in its path",
            hint="write the prefix as it appears in the keys of the objects",
        )
    return _Address(transport, authority, path)


def _s3_location(address: _Address) -> Location:
    transport, authority, path = address
    if not transport and ":" not in authority:
        return _in_bucket(Scheme.S3, "", "", [authority, *path])
    shown = "s3://" + (transport if transport == "https://" else "") + authority
    bare_address = authority.endswith("]") or ":" not in authority
    host, colon, port = (authority, "", "") if bare_address else authority.rpartition(":")
    if _HOST.fullmatch(host) is None:
        raise ConfigInvalid(f"'{host}' in {shown} is not a host", hint=f"give {_FORMS}")
    if colon and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _LAST_PORT):
        raise ConfigInvalid(f"'{port}' in {shown} is not a port", hint=f"a port is a number from 1 to {_LAST_PORT}")
    if not colon and not transport:
        raise ConfigInvalid(f"{shown} has no port", hint=f"give {_FORMS}")
    return _in_bucket(Scheme.S3, f"{transport or 'http://'}{host}{colon}{port}", shown, path)


def _azure_location(address: _Address) -> Location:
    account = address.authority.removesuffix(AZURE_HOST)
    if address.transport or _ACCOUNT.fullmatch(account) is None:
        raise ConfigInvalid(
            f"'{address.transport}{address.authority}' in an as:// repository is not the name of a storage account",
            hint="write as://account/container/prefix; AZURE_STORAGE_CONNECTION_STRING may name another endpoint",
        )
    return _in_bucket(Scheme.AS, f"https://{account}{AZURE_HOST}", f"as://{account}", address.path)


def _in_bucket(scheme: Scheme, endpoint_url: str, before: str, path: list[str]) -> Location:
    """Return the location at `path`, whose first part is the bucket; `before` precedes it in the URI's normal form."""
    shown = "/".join([before, *path]) if before else f"{scheme.value}://{'/'.join(path)}"
    bucket, prefix = (path[0], "/".join(path[1:])) if path else ("", "")
    if not bucket:
        raise ConfigInvalid(f"the model repository {shown} names no bucket", hint=f"give {_FORMS}")
    if _BUCKET.fullmatch(bucket) is None or bucket in (".", ".."):
        raise ConfigInvalid(
            f"'{bucket}' in the model repository {shown} cannot be the name of a bucket",
            hint="the name of a bucket consists of letters, digits, dots, underscores and hyphens",
        )
    return Location(shown, scheme, endpoint_url, bucket, prefix)
