"""Checks students' attention modules: `python -m imdbattn.check my_attention.py`."""

import argparse
import signal
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

import yaml

from imdbattn.errors import UserError, in_line, print_any_text
from imdbattn.tools.check import process, score, source
from imdbattn.tools.check.report import FORMATS, Outcome
from imdbattn.tools.check.tables import PARTS

__all__ = ["main", "score"]


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; --help lists the options")


def main() -> None:
    """Prints what holds and what does not.

    Exit status: 0 if all checks hold, 1 if not, 2 for wrong input, if no check could be made, or if
    the checker itself raised an exception; of several files, the largest.
    """
    print_any_text()
    # a student's random.py is there
    sys.path[:] = [path for path in sys.path if path and Path(path) != Path.cwd()]
    # also ends the child
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader of the output may end
    try:
        status = run(parse(sys.argv[1:]))
    except (UserError, OSError, yaml.YAMLError) as error:
        print(f"error: {in_line(error, None)}", file=sys.stderr)
        status = 2
    sys.exit(status)


def run(options: argparse.Namespace) -> int:
    if options.stub:
        sys.stdout.write(Path(process.__file__).with_name("stub.py.txt").read_text())
        return 0
    several = len(options.files) > 1
    kind = options.format or ("csv" if several else "text")
    if several and kind == "gradescope":
        raise UserError("--format gradescope is for one file: give one file per call")
    outcomes = []
    for file in options.files:
        try:
            source.read(file)
            outcome = process.run(file, dict(options.name), options.seconds, options.memory)
        except (UserError, OSError) as error:
            outcome = Outcome(file, error=in_line(error, None))
        if outcome.error and not several and kind != "gradescope":
            raise UserError(outcome.error)
        outcome.points = options.points
        outcome.require(dict.fromkeys([*options.require, *options.points]))
        outcomes.append(outcome)
    print(FORMATS[kind](outcomes))
    return max(outcome.status for outcome in outcomes)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        "imdbattn-check", description="Checks students' attention modules.", allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        metavar="file",
        help="Python or a notebook, with one or more of the parts of --stub",
    )
    add(
        "--name",
        action="append",
        type=named,
        default=[],
        metavar="PART=NAME",
        help="a part that has another name",
    )
    add("--stub", action="store_true", help="print a file to fill in, and exit")
    add("--format", choices=FORMATS, help="what is printed (default: text, for several files csv)")
    add(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        help="the same as --format json",
    )
    add(
        "--points",
        type=points,
        default={},
        metavar="FILE",
        help="YAML, the points of each part, then required",
    )
    add(
        "--require",
        type=required,
        default=[],
        metavar="PART,PART",
        help="parts that the file must have",
    )
    add("--seconds", type=positive, default=60.0, help="limit of time for each file (default: 60)")
    add(
        "--memory",
        type=positive,
        default=1.0,
        help="limit of memory in GiB, beyond that of imports (default: 1)",
    )
    options = parser.parse_args(arguments)
    if not options.files and not options.stub:
        raise UserError(
            "a file is missing: python -m imdbattn.check my_attention.py; --stub prints one to"
            " fill in"
        )
    return options


def positive(text: str) -> float:
    if not 0 < float(text) < 1e6:
        raise ValueError
    return float(text)


def named(text: str) -> tuple[str, str]:
    part, _, name = text.partition("=")
    if not name.isidentifier():
        raise ValueError
    return known(part), name


def required(text: str) -> list[str]:
    return [known(part) for part in text.split(",")]


def points(file: str) -> dict[str, float]:
    values = yaml.safe_load(Path(file).read_text())
    if not isinstance(values, dict) or not all(
        isinstance(v, int | float) and v >= 0 for v in values.values()
    ):
        raise UserError(
            f"--points {file} must have one line for each part, such as SelfAttention: 4"
        )
    return {known(part): value for part, value in values.items()}


def known(part: str) -> str:
    if part not in PARTS:
        near = get_close_matches(part, PARTS, 1, 0.5)
        raise UserError(
            f"there is no part {part!r}; {f'did you mean {near[0]}?' if near else ', '.join(PARTS)}"
        )
    return part


if __name__ == "__main__":
    main()
