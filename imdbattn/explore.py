"""Shows the attention of finished runs on an interactive page: `python -m imdbattn.explore
runs=<folder>`, or writes the page as one file: `out=page.html`.
"""

import secrets
import socket
import sys
import threading
import webbrowser
from typing import Any

from imdbattn.launch.command import command
from imdbattn.launch.process import without_gc

HOST = "127.0.0.1"


@command(
    "explore",
    "runs",
    "out",
    "data.glove.path",
    "data.cache_dir",
    schema="tools.explore.settings.Explore",
)
def main(settings: Any) -> None:
    """Serves the page until it is stopped, or writes it."""

    if settings.out is None:
        serve(settings)
    else:
        write(settings)


def write(settings: Any) -> None:
    """Writes one file with all runs that a browser can compute, and prints what it has."""
    with without_gc():
        from imdbattn.tools.explore.onefile import lines_of
        from imdbattn.tools.explore.runs import Runs, write_runs

    runs = Runs(settings.runs, settings)
    facts = write_runs(runs, settings.out)
    for skipped in runs.skipped:
        print(f"skipped: {skipped['folder']} ({skipped['reason']})", file=sys.stderr)
    print(*lines_of(facts), sep="\n")
    print(f"written: {settings.out} ({facts['size'] / 1e6:.2f} MB)")


def serve(settings: Any) -> None:
    """Serves the page at 127.0.0.1."""
    with without_gc():
        import uvicorn

        from imdbattn.tools.explore.runs import Runs
        from imdbattn.tools.explore.server import make_app

    with socket.create_server((HOST, settings.port)) as opened:  # port 0 is any free one
        runs, token = Runs(settings.runs, settings), secrets.token_urlsafe(16)
        address = f"http://{HOST}:{opened.getsockname()[1]}/{token}/"
        count = len(runs.by_id)
        print(f"{count} run{'s' * (count != 1)} at {address} (Ctrl-C stops the server)", flush=True)
        for skipped in runs.skipped:
            print(f"skipped: {skipped['folder']} ({skipped['reason']})", file=sys.stderr)
        if settings.open:
            threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
        app = make_app(runs, token)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=2
        )
        uvicorn.Server(config).run(sockets=[opened])  # until Ctrl-C or SIGTERM


if __name__ == "__main__":
    main()
