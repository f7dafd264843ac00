"""`python -m deploy.vertex`: reads its command line and prints or applies the plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TextIO

from app.settings.option import BadOption
from deploy.vertex.call import CheckFailed
from deploy.vertex.command_line import ACTIONS, circumstances, read_options
from deploy.vertex.plan import CallFailed, Plan
from deploy.vertex.shown import shown

_BAD_USAGE = 2
# The packages that the SDK installs.
_SDK = ("google", "requests")


def _now() -> datetime:
    return datetime.now(UTC)


def run(
    arguments: Sequence[str],
    out: TextIO,
    errors: TextIO,
    *,
    now: Callable[[], datetime] = _now,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Run a command line. The exit status is 0 for success, 1 for a failed call, 2 for a bad command line."""
    try:
        options = read_options(arguments)
        at = circumstances(options, now())
        plan = Plan(ACTIONS[options.action].load().steps(options, at))
        if options.dry_run:
            print("\n\n".join(shown(call) for call in plan.calls()), file=out)
            return 0
        if options.gcloud:
            from deploy.vertex.gcloud import shell_command

            for call in plan.calls():
                wait = f"sleep {call.after_s:g}\n" if call.after_s else ""
                print(f"# {call.title}\n{wait}{shell_command(call, at.place, at.api)}", file=out)
            return 0
        from deploy.vertex.clients import Clients

        return 1 if plan.apply(Clients(at.api, options.timeout_secs), out, sleep) else 0
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _SDK:
            raise
        print("error: Google's SDK is missing: pip install 'google-cloud-aiplatform>=2.7,<3'", file=errors)
        return _BAD_USAGE
    except BadOption as error:
        print(f"error: {error}", file=errors)
        return _BAD_USAGE
    except (CallFailed, CheckFailed) as error:
        print(f"error: {error}", file=errors)
        return 1
