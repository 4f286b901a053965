"""The one exception that ends a command in one clear line."""


class UserError(Exception):
    """Wrong input. Its message names the thing that is wrong and the way out.

    Entry points print it as one line and leave with exit status 2; anything else that is raised is a bug
    of ours and keeps its traceback.
    """
