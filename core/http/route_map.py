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
    """A version in a path: digits, kept as text."""

    regex = "[0-9]+"


@lru_cache(maxsize=8)
def url_map(routes: tuple[Route, ...]) -> Map:
    """The rules of the routes, for any method. Not to be changed: who asks again for the same routes gets the same map.

    Werkzeug writes and compiles two functions for each rule: 25 ms for an application, of which tests make hundreds.
    """
    rules = [Rule(rule, endpoint=route.name) for route in routes for rule in route.rules]
    return Map(rules, converters={"digits": DigitsConverter}, merge_slashes=False)


class RouteMap:
    """Finds the route of a path, without Flask. Any thread."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = {route.name: route for route in routes}
        self._urls = url_map(tuple(self._routes.values())).bind("localhost")

    def find(self, path: str) -> tuple[Route, dict[str, str]] | None:
        """The route of the raw `path`, and what its rule captures; None if there is none."""
        try:
            name, captured = self._urls.match(path)
        except HTTPException:  # redirects among them: a path with another slash is another path
            return None
        return self._routes[name], dict(captured)
