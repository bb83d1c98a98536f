"""What can go wrong between a client and the workers, and the HTTP status each becomes.

HasError
├── InputError
│   └── BadRequest        400   the request itself is wrong; `param` names the field
│       ├── TooLarge      413   a bound on size was passed: body, pixels, seconds, frames
│       ├── TooSlow       408   the body stopped coming
│       └── NotFound      404   no such model or route
├── Refused               429   sound, but not now: backpressure; `retry_after_s` says when
└── RunError
    ├── Unavailable       503   nobody can serve it: starting, draining, no worker left
    └── Interrupted       500   a worker failed after tokens were sent; before, it is retried unseen
"""

from __future__ import annotations

from has.errors import HasError, InputError, RunError


class BadRequest(InputError):
    """The client's fault. `param` is the dotted path of the field, or None when it is no single one."""

    status = 400
    code: str | None = None

    def __init__(self, message: str, param: str | None = None, *, code: str | None = None) -> None:
        super().__init__(message, where="request", field=param or "")
        self.param = param
        self.code = code or type(self).code


class TooLarge(BadRequest):
    status = 413
    code = "too_large"


class TooSlow(BadRequest):
    status = 408
    code = "too_slow"


class NotFound(BadRequest):
    status = 404
    code = "not_found"


class Refused(HasError):
    """Backpressure. `reason` is for machines (`queue`, `kv`), `retry_after_s` a finite number of seconds."""

    status = 429

    def __init__(self, retry_after_s: float, reason: str, message: str = "") -> None:
        super().__init__(
            message or f"no room for this request now ({reason})", mend=f"retry in {retry_after_s:.0f} s"
        )
        self.retry_after_s = retry_after_s
        self.reason = reason


class Unavailable(RunError):
    """Nobody can serve this. `retry_after_s`, if given, is when to look again."""

    status = 503

    def __init__(self, message: str, *, retry_after_s: float | None = None, mend: str = "") -> None:
        super().__init__(message, mend=mend)
        self.retry_after_s = retry_after_s


class Interrupted(RunError):
    """A worker failed after tokens of this request had been sent; they stand, no more will come."""

    status = 500
