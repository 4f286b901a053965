"""Training, scoring and prediction beside busy processes: `python -m benchmarks.busy`, in about ten
minutes.

Compares how long torch's OpenMP threads wait for each other in a loop: as imdbattn chooses, torch's
default, numbers of steps of your own (`python -m benchmarks.busy 100 1000`), and one thread.
"""

import itertools
import json
import os
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from statistics import median

REVIEWS = 600
ROUNDS = 2
BUSY = "while True: pass"
HALF = (
    "import time\nwhile True:\n end = time.time() + 0.05\n while time.time() < end: pass\n"
    " time.sleep(0.05)"
)
LOADS = {
    "idle": (),
    "half a core busy": (HALF,),
    "one core busy": (BUSY,),
    "two cores busy": (BUSY, BUSY),
}
UNITS = ("training, tokens/s", "scoring, reviews/s", "prediction, texts/s")


def rates(threads: int) -> list[float]:
    """Returns the speed of the three kinds of work in this process."""
    import imdbattn

    imdbattn.prepare()  # before torch: sets the number of steps
    import torch

    from benchmarks.training import score, settings, small_corpus, start, train
    from imdbattn.tasks.reviews.classifier import ReviewClassifier
    from imdbattn.tasks.reviews.predictor import ReviewPredictor

    start()
    torch.set_num_threads(threads)
    cfg = settings("model=residual_pe", "data.word_dropout=0")
    corpus = small_corpus(REVIEWS)
    tokens = int(corpus.splits["train"].lengths.clamp(max=cfg.data.max_tokens).sum())
    module = ReviewClassifier.new(cfg, corpus)
    predictor = ReviewPredictor(cfg, module.net, module.hparams, corpus.glove)
    from benchmarks.common import seconds

    texts = [
        "A film that I did not expect to love, but I did. " * (1 + n % 20) for n in range(REVIEWS)
    ]
    predictor.label(texts[:50])
    return [
        tokens / train(cfg, corpus),
        REVIEWS / score(cfg, corpus),
        REVIEWS / seconds(lambda: predictor.label(texts)),
    ]


def measure(steps: str, threads: int, load: str) -> list[float]:
    """Returns the rates of a new process beside the processes of a load; NaN if it does not end in
    half a minute.
    """
    with ExitStack() as stack:
        for program in LOADS[load]:
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", program]))
            stack.callback(process.kill)
        environment = dict(os.environ)
        for name in os.environ:
            if name.startswith(("OMP_", "GOMP_")):
                del environment[name]
        if steps:
            environment["GOMP_SPINCOUNT"] = steps
        command = [sys.executable, "-m", "benchmarks.busy", "--threads", str(threads)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True, timeout=30
            )
        except subprocess.TimeoutExpired:
            return [float("nan")] * len(UNITS)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    kinds = {
        "2 threads, as imdbattn chooses": ("", 2),
        "2 threads, 300,000 steps (torch's default)": ("300000", 2),
    }
    kinds |= {f"2 threads, {int(steps):,} steps": (steps, 2) for steps in sys.argv[1:]} | {
        "1 thread": ("", 1)
    }
    rounds = defaultdict(list)
    for _, load, kind in itertools.product(range(ROUNDS), LOADS, kinds):
        rates_of_round = measure(*kinds[kind], load)
        rounds[kind, load].append(rates_of_round)
        print(f"{load}: {kind}", [round(rate, 1) for rate in rates_of_round], flush=True)
    for number, unit in enumerate(UNITS):
        print(f"\n| {unit} | {' | '.join(LOADS)} |\n|---|{'---|' * len(LOADS)}")
        for kind in kinds:
            cells = []
            for load in LOADS:
                rate = median(rates_of_round[number] for rates_of_round in rounds[kind, load])
                cells.append(f"{rate:,.0f}")
            print(f"| {kind} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--threads"]:
        print(json.dumps(rates(int(sys.argv[2]))))
    else:
        main()
