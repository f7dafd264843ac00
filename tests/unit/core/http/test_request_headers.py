from __future__ import annotations

import pytest

from trident.core.http.reply import header_of


@pytest.mark.parametrize(("name", "key"), [("admin-Key", "HTTP_ADMIN_KEY"), ("Content-Type", "CONTENT_TYPE")])
def test_header_of_finds_a_header_under_its_wsgi_key(name: str, key: str) -> None:
    assert header_of({key: "a"}, name) == "a"
    assert header_of({}, name) is None


def test_header_of_distinguishes_underscores_where_names_are_kept() -> None:
    kept = {"trident.headers": [("Admin-Key", "b"), ("Admin_Key", "a")], "HTTP_ADMIN_KEY": "b"}
    assert header_of(kept, "admin_key") == "a"
    assert header_of({"trident.headers": [("Admin-Key", "a")], "HTTP_ADMIN_KEY": "a"}, "admin_key") is None
    # Other servers do not keep the names.
    assert header_of({"HTTP_ADMIN_KEY": "a"}, "admin_key") == "a"
