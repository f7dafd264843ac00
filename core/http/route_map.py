"""Paths to routes, by Werkzeug's rules and without Flask.

Source: spec/http.md section 2 (raw paths).
"""

from __future__ import annotations

from collections.abc import Iterable

from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter, Map, Rule

from core.http.routes import Route


class DigitsConverter(BaseConverter):
    """A version in a path: digits, kept as text."""

    regex = "[0-9]+"


class RouteMap:
    """Finds the route of a path. Any thread."""

    def __init__(self, routes: Iterable[Route]) -> None:
        by_name = {route.name: route for route in routes}
        rules = [Rule(rule, endpoint=name) for name, route in by_name.items() for rule in route.rules]
        self._routes = by_name
        self._urls = Map(rules, converters={"digits": DigitsConverter}, merge_slashes=False).bind("localhost")

    def find(self, path: str) -> tuple[Route, dict[str, str]] | None:
        """The route of the raw `path`, and what its rule captures; None if there is none."""
        try:
            name, captured = self._urls.match(path)
        except HTTPException:  # redirects among them: a path with another slash is another path
            return None
        return self._routes[name], dict(captured)
