"""The credential file in TRITON_CLOUD_CREDENTIAL_PATH, which may hold several cloud accounts, as Triton reads it.

    {"s3": {"": {"key_id": "…", "secret_key": "…", "session_token": "…", "region": "…", "profile": "…"},
            "s3://bucket": {"profile": "…"}},
     "gs": {"": "KEYFILE", "gs://bucket": "KEYFILE"}}

The keys are prefixes of repository URIs: the longest match wins, and "" matches all. Every string may be empty or
missing.

Source: docs/spec/repository.md section 1.10.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from core.errors import ConfigInvalid, RepositoryUnavailable
from core.repository.location import Location, Scheme, uri_prefix

_T = TypeVar("_T")

_LARGEST_FILE = 1 << 20
_HINT = "TRITON_CLOUD_CREDENTIAL_PATH names a JSON file with an object for each of the sections 's3' and 'gs'"


@dataclass(frozen=True, slots=True, repr=False)
class S3Credential:
    """A key, a profile of the AWS configuration, or the default chain if both are empty; each with a `region`."""

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
    """The entries of the file, by URI prefix. A storage without entries uses its SDK's default chain."""

    s3: Mapping[str, S3Credential] = field(default_factory=dict)
    gs: Mapping[str, GcsCredential] = field(default_factory=dict)

    def credentials_for(self, location: Location) -> S3Credential | GcsCredential | None:
        """The entry with the longest prefix of `location`; None for the default chain.

        Raises RepositoryUnavailable if the file has entries for this storage but none matches.
        """
        by_scheme: dict[Scheme, Mapping[str, S3Credential | GcsCredential]] = {Scheme.S3: self.s3, Scheme.GS: self.gs}
        entries = by_scheme.get(location.scheme, {})
        if not entries:
            return None
        matches = [prefix for prefix in entries if f"{location.text}/".startswith(prefix)]
        if not matches:
            raise RepositoryUnavailable(
                f"Cannot match credential for path  {location.text}",
                hint=f"add an entry for it or for \"\" to section '{location.scheme.value}' of the credential file",
            )
        credential = entries[max(matches, key=len)]
        return None if credential == GcsCredential("") else credential


def read_cloud_credentials(path: str) -> CloudCredentials:
    """Read the file at `path`; an empty path gives no entries. Sections of other storages are ignored.

    Raises ConfigInvalid for an unreadable or malformed file; the message contains nothing of the file's contents.
    """
    if not path:
        return CloudCredentials()
    root = _parsed(path)
    if not isinstance(root, dict):
        raise ConfigInvalid(f"the credential file {path} is not a JSON object", hint=_HINT)
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
    # Neither is chained: the exceptions of the parser hold the whole text.
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
        raise ConfigInvalid(f"section '{name}' of the credential file {path} is not an object", hint=_HINT)
    return {
        uri_prefix(prefix): read(entry, f"entry {index} of section '{name}' of the credential file {path}")
        for index, (prefix, entry) in enumerate(section.items(), 1)
    }


def _s3_credential(entry: object, where: str) -> S3Credential:
    if not isinstance(entry, dict):
        raise ConfigInvalid(f"{where} is not an object", hint=_HINT)
    names = ("key_id", "secret_key", "session_token", "region", "profile")
    wrong = [name for name in names if not isinstance(entry.get(name, ""), str)]
    if wrong:
        raise ConfigInvalid(f"{where}: '{wrong[0]}' is not a string", hint=_HINT)
    credential = S3Credential(**{name: entry[name] for name in names if name in entry})
    if bool(credential.key_id) != bool(credential.secret_key):
        given, missing = ("key_id", "secret_key") if credential.key_id else ("secret_key", "key_id")
        raise ConfigInvalid(f"{where} has '{given}' but no '{missing}'", hint="a key consists of both")
    return credential


def _gcs_credential(entry: object, where: str) -> GcsCredential:
    if not isinstance(entry, str):
        raise ConfigInvalid(f"{where} is not a string", hint="it must be the path of a key file")
    return GcsCredential(entry)
