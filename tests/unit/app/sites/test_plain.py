from __future__ import annotations

from typing import Any

from trident.app.sites.site import PlainSite, Site


def application(environ: Any, start_response: Any) -> list[bytes]:
    return []


def test_a_plain_site_serves_its_application_on_every_port_and_has_nothing_to_drain() -> None:
    site: Site = PlainSite(application, [1, 2])
    assert dict(site.applications) == {1: application, 2: application}
    assert site.finish(0.0)
