"""The server of the page: static files, and answers to the messages of the page.

All paths start with /<token>/. Only requests for 127.0.0.1 or localhost are answered, so that no
other site can reach the server by a host name of its own.
"""

import json
import secrets
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from imdbattn.errors import UserError, one_line, wrapping_errors
from imdbattn.settings.command_settings import ExploreSettings
from imdbattn.tools.explore.cell import Cell
from imdbattn.tools.explore.onefile import framed
from imdbattn.tools.explore.read import Positions, Read
from imdbattn.tools.explore.runs import Message, Reviews, Runs
from imdbattn.tools.explore.write import Write

HOSTS = ["127.0.0.1", "localhost"]
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


# The type of message for each path
MESSAGES: dict[str, type[Message]] = {
    message.__name__.lower(): message for message in (Read, Cell, Write, Positions, Reviews)
}


def endpoint(message_type: type[Message], runs: Runs) -> Callable[[Request], Awaitable[Response]]:
    """Returns a function that validates a message and answers it in another thread."""

    def answer(message: Message) -> Response:
        with runs.lock:
            facts, arrays = message.answer(runs)
        content = framed(facts, [array.astype("<f4").tobytes() for array in arrays])
        return Response(content, media_type="application/octet-stream")

    async def handle(request: Request) -> Response:
        message = message_type.model_validate_json(await request.body())
        return await run_in_threadpool(answer, message)

    return handle


async def failed(request: Request, error: Exception) -> Response:
    """Returns a response that states in one line what is wrong."""
    if isinstance(error, HTTPException):
        status, reason = error.status_code, error.detail
    elif isinstance(error, UserError | ValidationError):
        status, reason = 400, one_line(error, None)
    else:
        status = 500
        reason = f"{type(error).__name__}: {one_line(error)} (the terminal has the traceback)"
    return JSONResponse({"error": reason}, status)


def make_server(runs: Runs, token: str) -> uvicorn.Server:
    """Returns the server, whose page has the path /<token>/."""
    listed = Response(json.dumps(runs.listed()), media_type="application/json")
    routes: list[BaseRoute] = [Route("/api/runs", listed, methods=["GET"])]
    for name, message_type in MESSAGES.items():
        routes.append(Route(f"/api/{name}", endpoint(message_type, runs), methods=["POST"]))
    static = Path(__file__).with_name("static")
    routes.append(Mount("/", StaticFiles(directory=static, html=True)))
    handled: list[int | type[Exception]] = [
        *(ValidationError, UserError, HTTPException, ClientDisconnect),
        Exception,  # starlette also prints the traceback of any other exception
    ]
    app = Starlette(
        routes=[Mount(f"/{token}", routes=routes)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)],
        exception_handlers=dict.fromkeys(handled, failed),
    )
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
        headers=list(HEADERS.items()),
    )
    return uvicorn.Server(config)


def serve(settings: ExploreSettings) -> None:
    """Serves the page of imdbattn.explore at 127.0.0.1, until Ctrl-C or SIGTERM."""
    with wrapping_errors(f"port={settings.port} cannot be used, choose another one"):
        opened = socket.create_server((HOSTS[0], settings.port))  # port 0 is any free one
    with opened:
        runs = Runs(settings)
        token = secrets.token_urlsafe(16)
        address = f"http://{HOSTS[0]}:{opened.getsockname()[1]}/{token}/"
        print(f"runs: {len(runs.by_id)}, at {address} (Ctrl-C stops the server)", flush=True)
        runs.print_skipped()
        if settings.open:
            threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
        make_server(runs, token).run(sockets=[opened])
