"""The server of the page: static files, and answers to its requests in JSON.

Everything lies below /<token>/. Only requests for 127.0.0.1 or localhost are answered, so that no other site can reach
the server under a name of its own.
"""

import contextlib
import json
import random
import secrets
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from imdbattn.data.order_probe import PAIRS, pair
from imdbattn.errors import UserError, in_line
from imdbattn.explain.figures import attention_png
from imdbattn.explain.reading import Reading
from imdbattn.explain.show import digest
from imdbattn.explore import read, write
from imdbattn.explore.browse import Filters, next_review
from imdbattn.explore.changes import Changes
from imdbattn.explore.runs import Runs
from imdbattn.pages import render

WORDS = 40  # of the maps of a saved page, which are images
STATIC = Path(__file__).with_name("static")
MEBIBYTES = 4  # largest request
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


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ToRead(Asked):
    run: str
    text: str
    changes: Changes = Changes()


class ToWrite(Asked):
    run: str
    text: str
    beams: Annotated[int, Field(ge=1, le=20)] = 1
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0


class ToSave(Asked):
    readings: Annotated[list[ToRead], Field(max_length=12)] = []
    written: Annotated[list[ToWrite], Field(max_length=12)] = []


class ToBrowse(Asked):
    run: str
    runs: list[str] = []
    filters: Filters = Filters()
    after: int | None = None
    step: Literal[1, -1] = 1


class Probe(Asked):
    number: Annotated[int, Field(ge=0, lt=PAIRS)] | None = None


class ToMeasure(Asked):
    run: str
    length: Annotated[int, Field(ge=2, le=512)] = 128


class Answers:
    """The answer to each kind of request. One model computes at a time: threads would compete for the processor."""

    def __init__(self, runs: Runs):
        self.runs, self.browsing = runs, threading.Lock()

    def read(self, asked: ToRead) -> Response:
        with self.runs.lock:
            return binary(read.answer(self.runs.model(asked.run), asked.text, asked.changes))

    def write(self, asked: ToWrite) -> Response:
        with self.runs.lock:
            return encoded(write.answer(self.runs.model(asked.run), asked.text, asked.beams, asked.length_penalty))

    def positions(self, asked: ToMeasure) -> Response:
        with self.runs.lock:
            return binary(read.answer_positions(self.runs.model(asked.run), asked.length))

    def next(self, asked: ToBrowse) -> Response:
        others = [self.runs.run(name) for name in asked.runs]
        with self.browsing:
            found = next_review(self.runs.run(asked.run), others, asked.filters, asked.after, asked.step)
        return encoded(found)

    def probe(self, asked: Probe) -> Response:
        number = random.randrange(PAIRS) if asked.number is None else asked.number
        neg, pos = pair(number)
        return encoded({"number": number, "neg": neg, "pos": pos})

    def save(self, asked: ToSave) -> Response:
        sections: list[tuple[str, list[str], Any]] = []
        with self.runs.lock:
            for one in asked.readings:
                view = read.read(self.runs.model(one.run), one.text, one.changes)
                sections.append((self.name(one.run), one.changes.facts(view.names), view.reading))
            for source in asked.written:
                written = write.write(self.runs.model(source.run), source.text, source.beams, source.length_penalty)
                sections.append((self.name(source.run), [f"{source.beams} beams"], written))
        if not sections:
            raise UserError("there is nothing to save: type a text")
        page = saved_page(sections)  # figures are drawn without a model
        name = f"attention-{digest([reading for *_, reading in sections])}.html"
        return HTMLResponse(page, headers={"Content-Disposition": f'attachment; filename="{name}"'})

    def name(self, run: str) -> str:
        return f"{self.runs.labels[run]}, seed {self.runs.by_id[run].metrics['seed']}"


def encoded(values: Any) -> Response:
    content = json.dumps(values, ensure_ascii=False).encode("utf-8", "replace")
    return Response(content, media_type="application/json")


def binary(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


def refused(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)


async def body_of(request: Request) -> bytes:
    """Raises HTTPException for a body that is too large, without reading it to its end."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MEBIBYTES << 20:
            raise HTTPException(413, f"the text has more than {MEBIBYTES} MB: cut it")
        parts.append(part)
    return b"".join(parts)


def endpoint(kind: type[BaseModel], answer: Callable[[Any], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Checks a request and answers it in another thread; a request whose page has been closed is not computed."""

    async def handle(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return refused(415, "requests are JSON")
        try:
            asked = kind.model_validate_json(await body_of(request))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            return refused(400, f"{'.'.join(map(str, problem['loc'])) or 'request'}: {problem['msg']}")
        if await request.is_disconnected():
            return Response(status_code=499)
        try:
            return await run_in_threadpool(answer, asked)
        except UserError as error:
            return refused(400, in_line(error, None))
        except MemoryError:
            return refused(400, "the text is too long for the memory of this machine: cut it")

    return handle


class Guard:
    """Refuses requests without the token and for other hosts, and adds the headers to every answer."""

    def __init__(self, app: ASGIApp, token: str):
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1").rpartition(":")[0]
        given = scope["path"].split("/")[1]
        app: ASGIApp = self.app
        if host not in HOSTS:
            app = refused(403, "this page is served for 127.0.0.1 only")
        elif not secrets.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            reason = "wrong address: open the one that imdbattn.explore has printed; the part after # can be kept"
            app = refused(403, reason)
        with contextlib.suppress(ClientDisconnect):
            await app(scope, receive, send_with_headers)


async def http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refused(error.status_code, str(error.detail))


async def server_error(request: Request, error: Exception) -> Response:
    """Starlette then prints the traceback in the terminal."""
    return refused(500, f"a bug: {type(error).__name__}; the terminal has the details")


def make_app(runs: Runs, token: str) -> ASGIApp:
    """The application, whose page has the address /<token>/."""
    answers = Answers(runs)
    kinds: dict[str, tuple[type[BaseModel], Callable[[Any], Response]]] = {
        "read": (ToRead, answers.read),
        "write": (ToWrite, answers.write),
        "positions": (ToMeasure, answers.positions),
        "next": (ToBrowse, answers.next),
        "probe": (Probe, answers.probe),
        "save": (ToSave, answers.save),
    }

    def listed(request: Request) -> Response:
        return encoded(runs.listed())

    routes = [
        Route("/api/runs", listed, methods=["GET"]),
        *(Route(f"/api/{name}", endpoint(*kind), methods=["POST"]) for name, kind in kinds.items()),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    handlers: Any = {HTTPException: http_error, Exception: server_error}
    inner = Starlette(routes=[Mount(f"/{token}", routes=routes)], exception_handlers=handlers)
    return Guard(inner, token)


def saved_page(readings: Sequence[tuple[str, Sequence[str], Reading]]) -> str:
    """The page as one offline HTML file without scripts. readings: name of the run, changes in words, result."""
    sections = [(*shown, attention_png(shown[-1], WORDS)) for shown in readings]
    return render(Path(__file__).with_name("saved.html.jinja"), sections=sections, words=WORDS)
