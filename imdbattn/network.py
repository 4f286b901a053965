"""Whether a server answers."""

import http.client
import threading
import urllib.error
import urllib.request


def http_status(url: str, timeout: float) -> int | None:
    """The HTTP status of `url`, or None without an answer within `timeout` seconds, including the name lookup."""
    status: list[int] = []

    def request() -> None:  # in a thread, because a name lookup has no timeout
        try:
            with urllib.request.urlopen(url, timeout=timeout) as response:
                status.append(response.status)
        except urllib.error.HTTPError as error:
            status.append(error.code)
        except (OSError, ValueError, http.client.HTTPException):
            pass

    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(timeout)
    return status[0] if status else None
