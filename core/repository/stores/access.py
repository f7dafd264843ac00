"""How a storage is accessed: as whom, with which credentials, and where."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RegionOrigin(Enum):
    """Where the region of a storage's client was found."""

    CREDENTIAL_FILE = "credential file"
    CONFIGURATION = "configuration"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class StorageAccess:
    """The access of one store. It has no secret, so it may be shown.

    `identity` is what the error messages call it. `credentials` names their origin in the words of the storage's SDK:
    botocore's `method`, the module of Google's credentials, empty for anonymous access. `endpoint` is a URL. `region`
    is empty for a storage without regions.
    """

    identity: str
    credentials: str
    endpoint: str
    region: str = ""
    region_origin: RegionOrigin = RegionOrigin.DEFAULT
