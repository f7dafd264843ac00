"""The credentials of several cloud accounts in one file, as Triton reads it from TRITON_CLOUD_CREDENTIAL_PATH.

    {"s3": {"": {"key_id": "…", "secret_key": "…", "session_token": "…", "region": "…", "profile": "…"},
            "s3://bucket": {"profile": "…"}},
     "gs": {"": "KEYFILE", "gs://bucket": "KEYFILE"}}

The keys are beginnings of repository URIs: the longest that fits wins, "" fits all. Any string may be missing or empty.

Source: docs/spec/repository.md section 1.10.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from core.errors import ConfigInvalid, RepositoryUnavailable
from core.repository.location import Location, uri_prefix

_T = TypeVar("_T")

_LARGEST_FILE = 1 << 20
_HINT = "TRITON_CLOUD_CREDENTIAL_PATH names a JSON file with an object for each of the sections 's3' and 'gs'"


@dataclass(frozen=True, slots=True, repr=False)
class S3Credential:
    """A key, a profile of the AWS configuration, or (both empty) the default chain; `region` goes with any of them."""

    key_id: str = ""
    secret_key: str = ""
    session_token: str = ""
    region: str = ""
    profile: str = ""

    def __repr__(self) -> str:
        key = f"…{self.key_id[-4:]}" if self.key_id else ""
        return f"S3Credential(key_id={key!r}, region={self.region!r}, profile={self.profile!r})"


@dataclass(frozen=True, slots=True)
class GcsCredential:
    """The path of a service account's or an authorized user's JSON file."""

    key_file: str


@dataclass(frozen=True, slots=True)
class CloudCredentials:
    """What the file holds, by beginning of the URI. With no entry for a storage, its SDK's default chain is used."""

    s3: Mapping[str, S3Credential] = field(default_factory=dict)
    gs: Mapping[str, GcsCredential] = field(default_factory=dict)

    def credentials_for(self, location: Location) -> S3Credential | GcsCredential | None:
        """The entry with the longest beginning of `location`; None where the default chain is to be used.

        Raises RepositoryUnavailable where the file has entries for this storage, and none that fits.
        """
        by_scheme: dict[str, Mapping[str, S3Credential | GcsCredential]] = {"s3": self.s3, "gs": self.gs}
        entries = by_scheme.get(location.scheme, {})
        if not entries:
            return None
        fitting = [prefix for prefix in entries if f"{location.text}/".startswith(prefix)]
        if not fitting:
            raise RepositoryUnavailable(
                f"Cannot match credential for path  {location.text}",
                hint=f"add an entry for it, or one for \"\", to section '{location.scheme}' of the credential file",
            )
        credential = entries[max(fitting, key=len)]
        return None if credential == GcsCredential("") else credential


def read_cloud_credentials(path: str) -> CloudCredentials:
    """The file at `path`; no entries for an empty path. Sections of other storages are left out.

    Raises ConfigInvalid, without any of the file's contents in its text, where the file cannot be read as such.
    """
    if not path:
        return CloudCredentials()
    root = _parsed(path)
    if not isinstance(root, dict):
        raise ConfigInvalid(f"the credential file {path} is no JSON object", hint=_HINT)
    return CloudCredentials(
        s3=_section(path, root, "s3", _s3_credential), gs=_section(path, root, "gs", _gcs_credential)
    )


def _parsed(path: str) -> object:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigInvalid(f"cannot read the credential file {path}: {error.strerror}", hint=_HINT) from error
    if len(content) > _LARGEST_FILE:
        raise ConfigInvalid(f"the credential file {path} has more than {_LARGEST_FILE} bytes", hint=_HINT)
    # Both without their cause: the exceptions of the parser hold the whole text.
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConfigInvalid(f"the credential file {path} is not JSON ({where})", hint=_HINT) from None
    except (UnicodeDecodeError, RecursionError):
        raise ConfigInvalid(f"the credential file {path} is not JSON", hint=_HINT) from None


def _section(path: str, root: Mapping[str, object], name: str, read: Callable[[object, str], _T]) -> dict[str, _T]:
    section = root.get(name, {})
    if not isinstance(section, dict):
        raise ConfigInvalid(f"section '{name}' of the credential file {path} is no object", hint=_HINT)
    return {
        uri_prefix(prefix): read(entry, f"entry {index} of section '{name}' of the credential file {path}")
        for index, (prefix, entry) in enumerate(section.items(), 1)
    }


def _s3_credential(entry: object, where: str) -> S3Credential:
    if not isinstance(entry, dict):
        raise ConfigInvalid(f"{where} is no object", hint=_HINT)
    names = ("key_id", "secret_key", "session_token", "region", "profile")
    wrong = [name for name in names if not isinstance(entry.get(name, ""), str)]
    if wrong:
        raise ConfigInvalid(f"{where}: '{wrong[0]}' is no string", hint=_HINT)
    credential = S3Credential(**{name: entry[name] for name in names if name in entry})
    if bool(credential.key_id) != bool(credential.secret_key):
        given, missing = ("key_id", "secret_key") if credential.key_id else ("secret_key", "key_id")
        raise ConfigInvalid(f"{where} has '{given}' and no '{missing}'", hint="a key is made of both")
    return credential


def _gcs_credential(entry: object, where: str) -> GcsCredential:
    if not isinstance(entry, str):
        raise ConfigInvalid(f"{where} is no string", hint="it is the path of a key file")
    return GcsCredential(entry)
