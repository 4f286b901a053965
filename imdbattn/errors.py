"""The exception for wrong input."""


class UserError(Exception):
    """Wrong input. The message names what is wrong and how to fix it.

    Commands print it as one line and exit with status 2. Any other exception is a bug and keeps its traceback.
    """
