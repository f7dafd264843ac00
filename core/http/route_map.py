"""Paths to routes, by Werkzeug's rules.

Source: docs/spec/http.md section 2 (raw paths).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter, Map, Rule

from core.http.routes import Route


class DigitsConverter(BaseConverter):
    """A version in a path: digits, as text."""

    regex = "[0-9]+"


def url_map(routes: Iterable[Route]) -> Map:
    """The rules of the routes, for any method. Routes with the same rules share one map, so it must not be changed."""
    return _url_map(tuple((rule, route.name) for route in routes for rule in route.rules))


@lru_cache(maxsize=8)
def _url_map(rules: tuple[tuple[str, str], ...]) -> Map:
    # Cached, because Werkzeug compiles two functions for each rule: 25 ms for an application, and tests make hundreds.
    made = [Rule(rule, endpoint=name) for rule, name in rules]
    return Map(made, converters={"digits": DigitsConverter}, merge_slashes=False)


class RouteMap:
    """Finds the route of a path, without Flask. Any thread."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = {route.name: route for route in routes}
        self._urls = url_map(self._routes.values()).bind("localhost")

    def find(self, path: str) -> tuple[Route, dict[str, str]] | None:
        """The route of the raw `path`, and the values that its rule captures; None without a route."""
        try:
            name, captured = self._urls.match(path)
        except HTTPException:  # also a redirect: a path with another slash is another path
            return None
        return self._routes[name], dict(captured)
