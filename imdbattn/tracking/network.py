"""Function calls and requests to servers with a timeout."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import TypeVar

import requests  # W&B depends on it

Result = TypeVar("Result")


def result_within(seconds: float, call: Callable[[], Result]) -> Result:
    """Calls `call` in a thread and returns its result. Raises TimeoutError after `seconds`."""
    future = Future[Result]()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future.result(seconds)


def http_status(url: str, timeout: float) -> int | None:
    """Returns the HTTP status of `url`; None if no response arrives within `timeout` seconds."""
    with suppress(Exception):
        return result_within(timeout, lambda: requests.head(url, timeout=timeout).status_code)
    return None
