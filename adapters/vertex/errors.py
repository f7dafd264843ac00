"""The errors that only this adapter has.

    ServerError
    ├── RouteAbsent        NOT_FOUND    no such route, or not a public one
    ├── InvalidRequest
    │   └── RedirectUnknown    INVALID_ARG  the redirect header names nothing that can be reached by it
    └── RedirectForbidden  INVALID_ARG  what it names changes the server

Their statuses, and those that differ from plain HTTP's, are in `VertexApplication.status_of`.
"""

from __future__ import annotations

from core.errors import ErrorCode, InvalidRequest, ServerError


class RouteAbsent(ServerError):
    code = ErrorCode.NOT_FOUND


class RedirectUnknown(InvalidRequest):
    pass


class RedirectForbidden(ServerError):
    code = ErrorCode.INVALID_ARG
