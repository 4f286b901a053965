"""The server of the page: static files, and answers to the messages of the page.

All addresses are below /<token>/. Only requests for 127.0.0.1 or localhost are answered, so that no other site can
reach the server by a host name of its own.
"""

import contextlib
import json
import random
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from imdbattn.data.order_probe import PAIRS, pair
from imdbattn.errors import UserError, in_line
from imdbattn.explain.figures import attention_png
from imdbattn.explain.prediction import Prediction
from imdbattn.explain.show import digest
from imdbattn.explore import read, write
from imdbattn.explore.browse import Filters, next_review
from imdbattn.explore.changes import Changes
from imdbattn.explore.runs import Runs
from imdbattn.pages import render

WORDS = 40  # of the maps of a saved page, which are images
STATIC = Path(__file__).with_name("static")
HOSTS = ("127.0.0.1", "localhost")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Message(BaseModel):
    """What the page sends to the server."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def answer(self, runs: Runs) -> Response:
        raise NotImplementedError


class Read(Message):
    run: str
    text: str
    changes: Changes = Changes()

    def answer(self, runs: Runs) -> Response:
        with runs.lock:
            return binary(read.answer(runs.model(self.run), self.text, self.changes))


class Write(Message):
    run: str
    text: str
    beams: Annotated[int, Field(ge=1, le=20)] = 1
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0

    def answer(self, runs: Runs) -> Response:
        with runs.lock:
            return encoded(write.answer(runs.model(self.run), self.text, self.beams, self.length_penalty))


class Positions(Message):
    run: str
    length: Annotated[int, Field(ge=2, le=512)] = 128

    def answer(self, runs: Runs) -> Response:
        with runs.lock:
            return binary(read.answer_positions(runs.model(self.run), self.length))


class Next(Message):
    run: str
    runs: list[str] = []
    filters: Filters = Filters()
    after: int | None = None
    step: Literal[1, -1] = 1

    def answer(self, runs: Runs) -> Response:
        others = [runs.run(name) for name in self.runs]
        with runs.browsing:
            return encoded(next_review(runs.run(self.run), others, self.filters, self.after, self.step))


class Probe(Message):
    number: Annotated[int, Field(ge=0, lt=PAIRS)] | None = None

    def answer(self, runs: Runs) -> Response:
        number = random.randrange(PAIRS) if self.number is None else self.number
        neg, pos = pair(number)
        return encoded({"number": number, "neg": neg, "pos": pos})


class Save(Message):
    readings: Annotated[list[Read], Field(max_length=12)] = []
    written: Annotated[list[Write], Field(max_length=12)] = []

    def answer(self, runs: Runs) -> Response:
        sections: list[tuple[str, list[str], Prediction]] = []  # name of the run, its changes in words, the result
        with runs.lock:
            for one in self.readings:
                view = read.read(runs.model(one.run), one.text, one.changes)
                sections.append((runs.title(one.run), one.changes.facts(view.names), view.prediction))
            for source in self.written:
                written = write.write(runs.model(source.run), source.text, source.beams, source.length_penalty)
                sections.append((runs.title(source.run), [f"{source.beams} beams"], written))
        if not sections:
            raise UserError("there is nothing to save: type a text")
        predictions = [prediction for *_, prediction in sections]
        shown = [(*section, attention_png(section[-1], WORDS)) for section in sections]  # without the lock
        page = render(Path(__file__).with_name("saved.html.jinja"), sections=shown, words=WORDS)
        headers = {"Content-Disposition": f'attachment; filename="attention-{digest(predictions)}.html"'}
        return HTMLResponse(page, headers=headers)


MESSAGES = {kind.__name__.lower(): kind for kind in (Read, Write, Positions, Next, Probe, Save)}  # by path of the API


def encoded(values: Any) -> Response:
    content = json.dumps(values, ensure_ascii=False).encode("utf-8", "replace")
    return Response(content, media_type="application/json")


def binary(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


def refused(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)


def endpoint(kind: type[Message], runs: Runs) -> Callable[[Request], Awaitable[Response]]:
    """Validates a message and answers it in another thread; nothing is computed if the page has been closed."""

    async def handle(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return refused(415, "requests are JSON")
        message = kind.model_validate_json(await request.body())
        if await request.is_disconnected():
            return Response(status_code=499)
        return await run_in_threadpool(message.answer, runs)

    return handle


def guarded(app: ASGIApp, token: str) -> ASGIApp:
    """Refuses requests without the token and for other hosts, and adds the headers to every answer."""

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)

        async def send_with_headers(message: ASGIMessage) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1").rpartition(":")[0]
        given = scope["path"].split("/")[1]
        answer = app
        if host not in HOSTS:
            answer = refused(403, "this page is served for 127.0.0.1 only")
        elif not secrets.compare_digest(given.encode("utf-8", "replace"), token.encode()):
            reason = "wrong address: open the one that imdbattn.explore has printed; the part after # can be kept"
            answer = refused(403, reason)
        with contextlib.suppress(ClientDisconnect):
            await answer(scope, receive, send_with_headers)

    return guard


async def wrong_message(request: Request, error: Any) -> Response:
    problem = error.errors(include_url=False)[0]
    return refused(400, f"{'.'.join(map(str, problem['loc'])) or 'request'}: {problem['msg']}")


async def wrong_input(request: Request, error: Exception) -> Response:
    return refused(400, in_line(error, None))


async def other_error(request: Request, error: Exception) -> Response:
    """Starlette then prints the traceback in the terminal."""
    return refused(500, f"{type(error).__name__}: {in_line(error)} (the terminal has the traceback)")


def make_app(runs: Runs, token: str) -> ASGIApp:
    """The application, whose page has the address /<token>/."""
    routes = [
        Route("/api/runs", lambda request: encoded(runs.listed()), methods=["GET"]),
        *(Route(f"/api/{name}", endpoint(kind, runs), methods=["POST"]) for name, kind in MESSAGES.items()),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    handlers: Any = {ValidationError: wrong_message, UserError: wrong_input, Exception: other_error}
    return guarded(Starlette(routes=[Mount(f"/{token}", routes=routes)], exception_handlers=handlers), token)
