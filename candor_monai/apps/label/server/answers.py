"""What the server answers when a request cannot be met: a status of its own and one line, instead of 500."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse

from ....utils import DecodeError, UserError

logger = logging.getLogger(__name__)

GONE = frozenset({"not_found", "vanished", "gone"})


def not_found(what: str) -> HTTPException:
    """404."""
    return HTTPException(status_code=404, detail=what)


def status_of(error: UserError) -> int:
    """The status that tells a mistake apart from a fault: 404 for an image that is gone, 422 for one that cannot be
    decoded, else 400."""
    if isinstance(error, DecodeError):
        return 404 if error.reason in GONE else 422
    return 400


def refused(error: UserError) -> HTTPException:
    """A user's mistake as an answer."""
    reason = f" ({error.reason})" if isinstance(error, DecodeError) else ""
    return HTTPException(status_code=status_of(error), detail=f"{error}{reason}")


def tell_mistakes() -> None:
    """Answer 400 where MONAI Label's endpoints read a form field as JSON and it is none; stock gives 500.

    The handlers of a running FastAPI app are fixed when it starts, and the app that is being started makes this one:
    its stack of handlers is therefore made anew with the next request.
    """
    module = sys.modules.get("monailabel.app")
    server: Any = getattr(module, "app", None)
    if server is None:  # a task's own process serves nothing
        return

    async def not_json(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, json.JSONDecodeError)
        return JSONResponse({"detail": f"not JSON: {error}"}, status_code=400)

    async def mistake(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, UserError)
        answer = refused(error)
        return JSONResponse({"detail": answer.detail}, status_code=answer.status_code)

    server.add_exception_handler(json.JSONDecodeError, not_json)
    server.add_exception_handler(UserError, mistake)
    server.middleware_stack = None
