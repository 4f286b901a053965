"""The table of speed and memory; both sides of each row are measured alternately on this machine.

python -m benchmarks.bench                      all parts, into benchmarks/results.json and benchmarks/results.md
python -m benchmarks.bench training startup     these parts; their rows replace earlier ones in the files
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common import Row, markdown, write

PARTS = {  # part -> function that returns its rows
    **{name: f"{name}.rows" for name in ("training", "seq2seq", "preparation", "startup", "memory")},
    "growth": "training.growth_rows",
}


def rows(part: str) -> list[Row]:
    """The rows of one part, measured in its own process, so that no part warms the caches for the next."""
    module, _, function = PARTS[part].partition(".")
    code = f"import json; from benchmarks.{module} import {function}; from dataclasses import asdict; "
    code += f"result = json.dumps([asdict(r) for r in {function}()]); print('\\n' + result)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return [Row(**values) for values in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one of {', '.join(PARTS)}")
    parts = parser.parse_args().parts
    if unknown := set(parts) - PARTS.keys():
        parser.error(f"there is no part {min(unknown)}: choose from {', '.join(PARTS)}")
    results = []
    for part in parts or PARTS:
        start = time.perf_counter()
        results += rows(part)
        print(f"{part}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    print(markdown(results), end="")
    folder = Path(__file__).parent
    if parts and (folder / "results.json").exists():
        earlier = [Row(**values) for values in json.loads((folder / "results.json").read_text())]
        results = list({r.name: r for r in (*earlier, *results)}.values())
    write(results, folder)


if __name__ == "__main__":
    main()
