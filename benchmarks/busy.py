"""Training, scoring and prediction beside busy processes: `python -m benchmarks.busy`, in about half an hour.

Compares how long torch's OpenMP threads spin while they wait for each other (GOMP_SPINCOUNT) with the default.
"""

import itertools
import json
import os
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from statistics import median

REVIEWS, ROUNDS = 600, 3
BUSY = "while True: pass"
HALF = "import time\nwhile True:\n end = time.time() + 0.05\n while time.time() < end: pass\n time.sleep(0.05)"
LOADS = {"idle": (), "half a core busy": (HALF,), "one core busy": (BUSY,), "two cores busy": (BUSY, BUSY)}
UNITS = ("training, tokens/s", "scoring, reviews/s", "prediction, texts/s")


def rates(threads: int) -> list[float]:
    """Speed of the three kinds of work in this process."""
    import torch

    from benchmarks.training import score, settings, small_corpus, start, train
    from imdbattn.tasks.review_predictor import ReviewPredictor
    from imdbattn.tasks.task import task_of

    start()
    torch.set_num_threads(threads)
    cfg, corpus = settings("model=residual_pe", "data.word_dropout=0"), small_corpus(REVIEWS)
    tokens = int(corpus.splits["train"].lengths.clamp(max=cfg.data.max_tokens).sum())
    module = task_of(cfg).new(cfg, corpus)
    predictor = ReviewPredictor(cfg, module.net, module.hparams, corpus.glove)
    from benchmarks.common import seconds

    texts = ["A film that I did not expect to love, but I did. " * (1 + n % 20) for n in range(REVIEWS)]
    predictor.label(texts[:50])
    return [
        tokens / train(cfg, corpus),
        REVIEWS / score(cfg, corpus),
        REVIEWS / seconds(lambda: predictor.label(texts)),
    ]


def measure(environment: dict[str, str], threads: int, load: str) -> list[float]:
    """The rates of a new process with these environment variables, beside the processes of a load."""
    with ExitStack() as stack:
        for program in LOADS[load]:
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", program]))
            stack.callback(process.kill)
        command = [sys.executable, "-m", "benchmarks.busy", str(threads)]
        known = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        done = subprocess.run(command, env=known | environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    kinds: list[tuple[dict[str, str], int]] = [({"GOMP_SPINCOUNT": "300000"}, 2)]  # GNU OpenMP's default
    kinds += [({"GOMP_SPINCOUNT": count}, 2) for count in sys.argv[2:] or ("0", "1000", "10000", "30000")]
    found = defaultdict(list)
    for _, (kind, load) in itertools.product(range(ROUNDS), itertools.product([*kinds, ({}, 1)], LOADS)):
        found[str(kind), load].append(measure(*kind, load))
        print(kind, load, [round(rate) for rate in found[str(kind), load][-1]], flush=True)
    for place, unit in enumerate(UNITS):
        print(f"\n| {unit} | {' | '.join(LOADS)} |\n|---|{'---|' * len(LOADS)}")
        for kind in [*kinds, ({}, 1)]:
            cells = (f"{median(one[place] for one in found[str(kind), load]):,.0f}" for load in LOADS)
            name = f"{kind[1]} threads, spin {kind[0]['GOMP_SPINCOUNT']}" if kind[0] else "1 thread"
            print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(rates(int(sys.argv[1]))))
    else:
        main()
