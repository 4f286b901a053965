"""Checks students' attention modules: `python -m imdbattn.check my_attention.py`."""

import signal
import sys
from pathlib import Path

import yaml

from imdbattn.errors import UserError, one_line, replace_unencodable_output
from imdbattn.tools.check import process
from imdbattn.tools.check.grading import grade
from imdbattn.tools.check.options import parse

__all__ = ["grade", "main"]


def main() -> None:
    """Prints what holds and what does not.

    Exit status: 0 if all checks hold, 1 if not, 2 for wrong input, if no check could be made, or if
    the checker itself raised an exception; of several files, the largest.
    """
    replace_unencodable_output()
    # The working directory may have a student's random.py.
    sys.path[:] = [path for path in sys.path if path and Path(path) != Path.cwd()]
    # The exit runs the code that ends the child process.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the program that reads the output may end first
    try:
        status = process.run_all(parse(sys.argv[1:]))
    except (UserError, OSError, yaml.YAMLError) as error:
        print(f"error: {one_line(error, None)}", file=sys.stderr)
        status = 2
    sys.exit(status)


if __name__ == "__main__":
    main()
