"""HTTP requests with a timeout that includes the name lookup."""

import http.client
import threading
import urllib.error
import urllib.request


def http_status(url: str, timeout: float) -> int | None:
    """The HTTP status of `url`; None if there is no response within `timeout` seconds, name lookup included."""
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
