"""The options of the command."""

import argparse
from pathlib import Path
from typing import NoReturn

import yaml

from imdbattn.errors import UserError
from imdbattn.tools.check.report import FORMATS
from imdbattn.tools.check.sheets import PROJECT, SHEETS, load


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; --help lists the options")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        "imdbattn-check", description="Checks students' attention modules.", allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        metavar="file",
        help="a Python file or a notebook, with one or more of the parts of --stub",
    )
    add(
        "--name",
        action="append",
        type=lambda text: text.partition("=")[::2],
        default=[],
        metavar="PART=NAME",
        help="the name that a part has in the file",
    )
    add(
        "--sheet",
        help=f"{', '.join(SHEETS)}, or a YAML file (default: the one that the names belong to)",
    )
    add(
        "--stub",
        nargs="?",
        const=PROJECT,
        metavar="SHEET",
        help="print a file to fill in, of a sheet (default: the parts of this project), and exit",
    )
    add("--format", choices=FORMATS, help="output format (default: text; csv for several files)")
    add(
        "--points",
        type=points,
        default={},
        metavar="FILE",
        help="a YAML file with the points of each part; these parts are required",
    )
    add(
        "--require",
        type=lambda text: text.split(","),
        default=[],
        metavar="PART,PART",
        help="parts that the file must have",
    )
    add("--seconds", type=positive, default=60.0, help="time limit for each file (default: 60)")
    add(
        "--memory",
        type=positive,
        default=1.0,
        help="memory limit in GiB, in addition to what imports use (default: 1)",
    )
    options = parser.parse_args(arguments)
    if not options.files and options.stub is None:
        raise UserError(
            "a file is missing: python -m imdbattn.check my_attention.py; --stub prints one to"
            " fill in"
        )
    options.name = dict(options.name)
    sheets = [load(options.sheet)] if options.sheet else []  # a wrong sheet is no finding
    if options.sheet and options.sheet not in SHEETS:
        options.sheet = str(Path(options.sheet).absolute())  # the file may change the folder
    if asked := [*options.name, *options.require, *options.points]:
        entries = [entry for sheet in sheets or map(load, SHEETS) for entry in sheet.entries]
        known = dict.fromkeys(name for entry in entries for name in (entry.name, *entry.kinds))
        for part in asked:
            if part not in known:
                raise UserError(f"there is no part {part!r}: {', '.join(known)}")
    return options


def positive(text: str) -> float:
    if not 0 < float(text) < 1e6:
        raise ValueError
    return float(text)


def points(file: str) -> dict[str, float]:
    values = yaml.safe_load(Path(file).read_text())
    if not isinstance(values, dict) or not all(
        isinstance(v, int | float) and v >= 0 for v in values.values()
    ):
        raise UserError(
            f"--points {file} must have one line for each part, such as SelfAttention: 4"
        )
    return {str(part): value for part, value in values.items()}
