"""Shows the attention of finished runs on an interactive page: `python -m imdbattn.explore runs=<folder>`."""

import os
import secrets
import socket
import sys
import threading
import webbrowser
from typing import Any

from imdbattn.compare import listed
from imdbattn.errors import UserError
from imdbattn.settings.cli import command, without_gc

HOST = "127.0.0.1"


@command("explore", "runs", "data.glove.path", "data.cache_dir", schema="Explore")
def main(settings: Any) -> None:
    """Serves the page until it is stopped."""

    folders = listed(settings.runs)
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install -e '.[explore]'") from error
    opened = open_port(settings.port)
    with without_gc():
        from imdbattn.explore.runs import Runs
        from imdbattn.explore.server import make_app
        from imdbattn.runs.trainer import quiet

    quiet()
    runs, token = Runs(folders, settings), secrets.token_urlsafe(16)
    address = f"http://{HOST}:{opened.getsockname()[1]}/{token}/"
    count = len(runs.by_id)
    print(f"{count} run{'s' * (count != 1)} at {address} (Ctrl-C stops the server)", flush=True)
    for skipped in runs.skipped:
        print(f"skipped: {skipped['folder']} ({skipped['reason']})", file=sys.stderr)
    if settings.open:
        threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
    config = uvicorn.Config(make_app(runs, token), log_level="warning", access_log=False, timeout_graceful_shutdown=2)
    with opened:
        uvicorn.Server(config).run(sockets=[opened])  # until Ctrl-C or SIGTERM


def open_port(port: int) -> socket.socket:
    """A listening socket. Raises UserError if the port is in use. port: 0 chooses a free one."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UserError(f"port={port} cannot be used ({reason}): port=0 chooses a free one") from error


if __name__ == "__main__":
    main()
