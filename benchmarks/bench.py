"""The table of speed and memory, every line both sides in turn on this machine.

python -m benchmarks.bench                      all parts, into benchmarks/results.json and benchmarks/results.md
python -m benchmarks.bench training startup     some parts, whose rows replace earlier ones there
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.table import Row, markdown, write

PARTS = ("training", "seq2seq", "preparation", "startup", "memory", "growth")


def rows(part: str) -> list[Row]:
    """The rows of one part, measured in a process of its own: none warms the next one's caches up."""
    code = f"import json; from benchmarks.{part} import rows; from dataclasses import asdict; "
    code += "found = json.dumps([asdict(r) for r in rows()]); print('\\n' + found)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return [Row(**values) for values in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    chosen = parser.parse_args().parts
    start, found = time.perf_counter(), []
    for part in chosen or PARTS:
        since = time.perf_counter()
        found += rows(part)
        print(f"{part}: {time.perf_counter() - since:.0f} s", file=sys.stderr)
    print(f"\n{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}", file=sys.stderr)
    print(f"{(time.perf_counter() - start) / 60:.1f} minutes\n", file=sys.stderr)
    print(markdown(found), end="")
    here = Path(__file__).parent
    if chosen and (here / "results.json").exists():
        earlier = {values["name"]: Row(**values) for values in json.loads((here / "results.json").read_text())}
        found = list((earlier | {r.name: r for r in found}).values())
    write(found, here)


if __name__ == "__main__":
    main()
