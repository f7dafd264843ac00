"""The errors that only this adapter has.

    ServerError
    ├── InvalidRequest
    │   └── RedirectUnknown    INVALID_ARG  the path in the redirect header cannot be reached by it
    └── RedirectForbidden  INVALID_ARG  the path in the redirect header changes the server

Their statuses, and those that differ from plain HTTP's, are in `VertexApplication.status_of`.
"""

from __future__ import annotations

from core.errors import ErrorCode, InvalidRequest, ServerError


class RedirectUnknown(InvalidRequest):
    pass


class RedirectForbidden(ServerError):
    code = ErrorCode.INVALID_ARG
