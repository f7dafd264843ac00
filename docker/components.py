"""Writes the components of an installation as a CycloneDX document (SBOM).

It has no dates, so that the same files give the same text:

    python components.py VERSION SITE_PACKAGES [DPKG_STATUS] > components.cdx.json

The product is `trident`; its components are the distributions in SITE_PACKAGES, the interpreter that runs this, and the
packages of Debian in DPKG_STATUS, such as /var/lib/dpkg/status. Needs only the standard library.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

PRODUCT = "trident-inference"


def document(version: str, site_packages: Path, dpkg_status: Path | None = None) -> dict[str, Any]:
    """A CycloneDX 1.6 document."""
    found = {_normalized(each.metadata["Name"]): each for each in distributions(path=[str(site_packages)])}
    components = [_python(name, each) for name, each in found.items() if name != PRODUCT]
    components.append(_component("application", "python", platform.python_version(), "pkg:generic/python", "PSF-2.0"))
    if dpkg_status is not None:
        components += _debian(dpkg_status.read_text())
    product = _component("application", PRODUCT, version, f"pkg:generic/{PRODUCT}", "Apache-2.0")
    components.sort(key=lambda each: str(each["bom-ref"]))
    refs = [each["bom-ref"] for each in components]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": product},
        "components": components,
        "dependencies": [{"ref": product["bom-ref"], "dependsOn": refs}],
    }


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _component(kind: str, name: str, version: str, purl: str, licence: str = "") -> dict[str, Any]:
    ref = f"{purl}@{quote(version, safe='.-~_')}"
    found: dict[str, Any] = {"type": kind, "bom-ref": ref, "name": name, "version": version, "purl": ref}
    if licence:
        found["licenses"] = [{"license": {"name": licence}}]
    return found


def _python(name: str, each: Distribution) -> dict[str, Any]:
    said = each.metadata.get("License-Expression") or each.metadata.get("License") or ""
    classified = [
        line.rpartition(" :: ")[2]
        for line in each.metadata.get_all("Classifier") or []
        if line.startswith("License ::")
    ]
    # Some put the whole text there.
    licence = said if said and "\n" not in said else ", ".join(classified)
    return _component("library", name, each.version, f"pkg:pypi/{name}", licence)


def _debian(status: str) -> Iterator[dict[str, Any]]:
    for block in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status): (.*)$", block, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            yield _component("library", fields["Package"], fields["Version"], f"pkg:deb/debian/{fields['Package']}")


if __name__ == "__main__":
    written = document(sys.argv[1], Path(sys.argv[2]), *map(Path, sys.argv[3:]))
    print(json.dumps(written, indent=1, ensure_ascii=False))
