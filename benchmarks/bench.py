"""Measures the table of speed and memory; the two sides of each row are measured alternately on the
same machine.

python -m benchmarks.bench                    all parts, into results.json and results.md
python -m benchmarks.bench training startup   these parts; their rows replace earlier ones
"""

import argparse
import json
import sys
import time
from importlib import import_module
from pathlib import Path

from benchmarks.common import Row, markdown, own_process, write

PARTS = {  # part -> function that returns its rows
    "training": "training.rows",
    "seq2seq": "training.string_rows",
    **{
        name: f"commands.{name}_rows"
        for name in ("preparation", "startup", "sweep", "prediction", "memory")
    },
    "growth": "training.growth_rows",
}


def rows(part: str) -> list[Row]:
    """Returns the rows of one part."""
    module, _, function = PARTS[part].partition(".")
    return getattr(import_module(f"benchmarks.{module}"), function)()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one of {', '.join(PARTS)}")
    parts = parser.parse_args().parts
    if unknown := set(parts) - PARTS.keys():
        parser.error(f"there is no part {min(unknown)}: choose from {', '.join(PARTS)}")
    results = []
    folder = Path(__file__).parent
    for part in parts or PARTS:
        start = time.perf_counter()
        with own_process() as apart:  # so that no part warms the caches for the next
            results += apart(rows, part)
        print(f"{part}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
        if parts:
            earlier = [
                Row(**values) for values in json.loads((folder / "results.json").read_text())
            ]
            results = list({r.name: r for r in (*earlier, *results)}.values())
        write(results, folder)
    print(markdown(results), end="")


if __name__ == "__main__":
    main()
