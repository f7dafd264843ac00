"""Where a model repository is, read out of one value of --model-repository.

    models, /models, C:models               a local folder, as it is written
    s3://bucket/prefix                      S3 of AWS, or of AWS_ENDPOINT_URL_S3
    s3://host:port/bucket/prefix            an S3-compatible storage over HTTP
    s3://http://host:port/bucket/prefix     the same
    s3://https://host:port/bucket/prefix    over HTTPS; here the port may be left out
    gs://bucket/prefix                      Google Cloud Storage

The prefix may be missing; repeated and trailing slashes count as one and as none.

Source: docs/spec/repository.md section 1.10.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from core.errors import ConfigInvalid, Unsupported

Scheme = Literal["local", "s3", "gs"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
# The storages check the rest of their rules themselves; this keeps out what could change the meaning of a URL.
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LAST_PORT = 65535
_FORMS = "a local path, s3://bucket/prefix, s3://[http[s]://]host:port/bucket/prefix or gs://bucket/prefix"


@dataclass(frozen=True, slots=True)
class Location:
    """The address of a model repository, without credentials: it may be logged and shown.

    `text` is the path as given, or the URI in its one spelling (single slashes, none at the end, no `http://` within),
    so that two values for one place are equal. `bucket` and `prefix` are empty for a local folder; `prefix` neither
    begins nor ends with a slash and is empty for the bucket's root. `endpoint_url` is empty unless the URI names one.
    """

    text: str
    scheme: Scheme
    endpoint_url: str = ""
    bucket: str = ""
    prefix: str = ""


class _Address(NamedTuple):
    """What follows `s3://` or `gs://`."""

    transport: str
    authority: str
    path: list[str]


def parse_location(text: str) -> Location:
    """Raises Unsupported for a storage of Triton's that is not one of this server's, ConfigInvalid for a wrong form."""
    if not text or "\0" in text:
        raise ConfigInvalid("the model repository has no path", hint=f"give {_FORMS}")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Location(text, "local")
    match scheme[1].lower():
        case "s3":
            return _s3_location(_address(text))
        case "gs":
            return _gs_location(_address(text))
        case "as":
            raise Unsupported(
                "as:// file-system not supported. The storages of this server are local folders, s3:// and gs://",
                hint="mount the container as a folder, or copy the repository to one of these storages",
            )
        case other:
            raise ConfigInvalid(f"unknown storage {other}:// of a model repository", hint=f"give {_FORMS}")


def uri_prefix(text: str) -> str:
    """The beginning of a URI in the spelling of `Location.text`, to be compared with it; a slash at its end stays."""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return text
    rest = text[scheme.end() :]
    transport = "https://" if rest.startswith("https://") else ""
    rest = re.sub("/+", "/", rest.removeprefix("https://").removeprefix("http://"))
    return f"{scheme[1].lower()}://{transport}{rest.removeprefix('/')}"


def _address(text: str) -> _Address:
    """Raises ConfigInvalid where the URI carries a password, or would be another one once an HTTP client reads it."""
    scheme, _, rest = text.partition("://")
    transport = next((each for each in ("http://", "https://") if rest.startswith(each)), "")
    authority, *path = [part for part in rest.removeprefix(transport).split("/") if part] or [""]
    if "@" in authority:
        # Without the text: it may hold a password.
        raise ConfigInvalid(
            f"the model repository {scheme}://… has a user name or a password in it",
            hint="credentials come from the environment, a profile, a role, or TRITON_CLOUD_CREDENTIAL_PATH",
        )
    if _CONTROL.search(text) or any(part in (".", "..") for part in path):
        raise ConfigInvalid(
            f"the model repository {text!r} has '.', '..' or a control character in its path",
            hint="write the prefix as it is in the keys of the objects",
        )
    return _Address(transport, authority, path)


def _s3_location(address: _Address) -> Location:
    transport, authority, path = address
    if not transport and ":" not in authority:
        return _in_bucket("s3", "", "", [authority, *path])
    shown = "s3://" + (transport if transport == "https://" else "") + authority
    host, port = _host_and_port(shown, authority)
    if not port and not transport:
        raise ConfigInvalid(f"{shown} has no port", hint=f"give {_FORMS}")
    return _in_bucket("s3", f"{transport or 'http://'}{host}{port}", shown, path)


def _gs_location(address: _Address) -> Location:
    if address.transport or ":" in address.authority:
        raise ConfigInvalid(
            f"gs://{address.transport}{address.authority} names an endpoint, which a gs:// repository cannot have",
            hint="write gs://bucket/prefix; STORAGE_EMULATOR_HOST leads to an emulator",
        )
    return _in_bucket("gs", "", "", [address.authority, *address.path])


def _in_bucket(scheme: Literal["s3", "gs"], endpoint_url: str, before: str, path: list[str]) -> Location:
    """`before` is what stands before the path's first part, the bucket, in the URI's one spelling."""
    shown = "/".join([before, *path]) if before else f"{scheme}://{'/'.join(path)}"
    bucket, prefix = (path[0], "/".join(path[1:])) if path else ("", "")
    if not bucket:
        raise ConfigInvalid(f"the model repository {shown} names no bucket", hint=f"give {_FORMS}")
    if _BUCKET.fullmatch(bucket) is None or bucket in (".", ".."):
        raise ConfigInvalid(
            f"'{bucket}' in the model repository {shown} cannot be the name of a bucket",
            hint="a bucket has letters, digits, dots, underscores and hyphens in its name",
        )
    return Location(shown, scheme, endpoint_url, bucket, prefix)


def _host_and_port(shown: str, authority: str) -> tuple[str, str]:
    """The port with its colon, empty where there is none."""
    bare_address = authority.endswith("]") or ":" not in authority
    host, colon, port = (authority, "", "") if bare_address else authority.rpartition(":")
    if _HOST.fullmatch(host) is None:
        raise ConfigInvalid(f"'{host}' in {shown} is no host", hint=f"give {_FORMS}")
    if colon and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _LAST_PORT):
        raise ConfigInvalid(f"'{port}' in {shown} is no port", hint=f"a port is a number from 1 to {_LAST_PORT}")
    return host, colon + port
