"""Checks a student's attention modules: `python -m imdbattn.check my_attention.py`."""

import argparse
import ast
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from imdbattn.check import PARTS
from imdbattn.errors import UserError, in_line, print_any_text


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; --help lists the options")


def main() -> None:
    """Prints what holds and what does not.

    Exit status: 0 if all checks hold, 1 if not, 2 for wrong input or if the checker itself raised an exception.
    """
    print_any_text()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # also ends the child
    try:
        status = run()
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {in_line(error, None)}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    sys.exit(status)


def run() -> int:
    options = parse(sys.argv[1:])
    if options.stub:
        sys.stdout.write(Path(__file__).with_name("stub.py.txt").read_text())
        return 0
    file = readable(options.file)
    names = dict(map(named, options.name))

    from imdbattn.check import process, report

    outcome = process.run(file, names, options.seconds, options.memory)
    print(report.as_json(options.file, outcome) if options.json else report.as_text(outcome))
    held, of = report.score(outcome)
    failed = any(result["finding"] == "not-checked" for result in outcome.results)
    return 1 if held < of else 2 * failed


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser("imdbattn-check", description="Checks a student's attention modules.", allow_abbrev=False)
    parser.add_argument("file", nargs="?", help="a Python file with one or more of the parts that --stub prints")
    parser.add_argument("--name", action="append", default=[], metavar="PART=NAME", help="a part that has another name")
    parser.add_argument("--stub", action="store_true", help="print a file to fill in, and exit")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    parser.add_argument("--seconds", type=float, default=60, help="limit of time (default: 60)")
    parser.add_argument("--memory", type=float, default=4, help="limit of memory in GiB (default: 4)")
    options = parser.parse_args(arguments)
    if options.file is None and not options.stub:
        raise UserError("a file is missing: python -m imdbattn.check my_attention.py; --stub prints one to fill in")
    for name in ("seconds", "memory"):
        if not 0 < getattr(options, name) < 1e6:
            raise UserError(f"--{name} {getattr(options, name):g} must be above 0 and below 1000000")
    return options


def readable(name: str) -> Path:
    """The absolute path of a file with Python code."""
    try:
        ast.parse(Path(name).read_bytes(), name)
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror})") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{name} is not Python: {in_line(error)}") from error
    return Path(name).absolute()


def named(text: str) -> tuple[str, str]:
    part, equals, name = text.partition("=")
    if part not in PARTS or not equals or not name.isidentifier():
        raise UserError(f"--name {text} must be PART=NAME, PART being one of {', '.join(PARTS)}")
    return part, name


if __name__ == "__main__":
    main()
