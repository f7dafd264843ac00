"""The errors that only this adapter has.

    ServerError
    └── RouteAbsent  NOT_FOUND  no such route, or not in the mode that the server runs in

Their statuses, and those that differ from plain HTTP's, are in `SageMakerApplication.status_of`.
"""

from __future__ import annotations

from core.errors import ErrorCode, ServerError


class RouteAbsent(ServerError):
    code = ErrorCode.NOT_FOUND
