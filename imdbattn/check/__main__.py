"""Checks students' attention modules: `python -m imdbattn.check my_attention.py`."""

import argparse
import signal
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

import yaml

from imdbattn.check import process, source
from imdbattn.check.report import FORMATS, Outcome
from imdbattn.check.source import PARTS
from imdbattn.errors import UserError, in_line, print_any_text


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; --help lists the options")


def main() -> None:
    """Prints what holds and what does not.

    Exit status: 0 if all checks hold, 1 if not, 2 for wrong input, if no check could be made, or if the checker itself
    raised an exception; of several files, the largest.
    """
    print_any_text()
    sys.path[:] = [path for path in sys.path if path and Path(path) != Path.cwd()]  # a student's random.py is there
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # also ends the child
    try:
        status = run()
    except UserError as error:
        print(f"error: {in_line(error, None)}", file=sys.stderr)
        status = 2
    sys.exit(status)


def run() -> int:
    options = parse(sys.argv[1:])
    if options.stub:
        sys.stdout.write(Path(__file__).with_name("stub.py.txt").read_text())
        return 0
    several = len(options.files) > 1
    kind = options.format or ("csv" if several else "text")
    if several and kind == "gradescope":
        raise UserError("--format gradescope is for one file: give one file per call")
    points = read_points(options.points) if options.points else {}
    names = dict(pair.split("=") for pair in options.name)
    outcomes = []
    for file in options.files:
        outcome = Outcome(file)
        try:
            source.read(file)
            outcome = process.run(file, names, options.seconds, options.memory)
        except UserError as error:
            if not several and kind != "gradescope":
                raise
            outcome.error = in_line(error, None)
        outcome.points = points
        outcome.require(dict.fromkeys([*options.require, *points]))
        outcomes.append(outcome)
    print(FORMATS[kind](outcomes))
    return max(outcome.status for outcome in outcomes)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser("imdbattn-check", description="Checks students' attention modules.", allow_abbrev=False)
    parser.add_argument("files", nargs="*", metavar="file", help="Python or a notebook, with parts that --stub prints")
    parser.add_argument("--name", action="append", default=[], metavar="PART=NAME", help="a part that has another name")
    parser.add_argument("--stub", action="store_true", help="print a file to fill in, and exit")
    parser.add_argument("--format", choices=FORMATS, help="what is printed (default: text, for several files csv)")
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    parser.add_argument("--points", metavar="FILE", help="YAML, the points of each part, which is then required")
    parser.add_argument(
        "--require", default=[], type=lambda text: text.split(","), help="parts that must be there: A,B"
    )
    parser.add_argument("--seconds", type=float, default=60, help="limit of time for each file (default: 60)")
    parser.add_argument("--memory", type=float, default=1, help="limit of memory in GiB, beyond torch (default: 1)")
    options = parser.parse_args(arguments)
    if not options.files and not options.stub:
        raise UserError("a file is missing: python -m imdbattn.check my_attention.py; --stub prints one to fill in")
    for name in ("seconds", "memory"):
        if not 0 < getattr(options, name) < 1e6:
            raise UserError(f"--{name} {getattr(options, name):g} must be above 0 and below 1000000")
    for text in options.name:
        part, equals, name = text.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"--name {text} must be PART=NAME")
        known(part, f"--name {text}")
    for part in options.require:
        known(part, "--require")
    return options


def known(part: str, where: str) -> None:
    if part not in PARTS:
        near = get_close_matches(part, PARTS, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(PARTS)}"
        raise UserError(f"{where}: there is no part {part!r}; {hint}")


def read_points(file: str) -> dict[str, float]:
    try:
        values = yaml.safe_load(Path(file).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"--points {file} cannot be read: {in_line(error)}") from error
    if not isinstance(values, dict) or not all(isinstance(v, int | float) and v >= 0 for v in values.values()):
        raise UserError(f"--points {file} must have one line for each part, such as SelfAttention: 4")
    for part in values:
        known(part, f"--points {file}")
    return values


if __name__ == "__main__":
    main()
