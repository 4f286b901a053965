"""Training, scoring and prediction beside busy processes: `python -m benchmarks.busy`, in about ten
minutes.

Compares how long torch's OpenMP threads wait for each other in a loop: as imdbattn chooses, torch's
default, numbers of steps of your own (`python -m benchmarks.busy 100 1000`), and one thread.
"""

import itertools
import json
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from statistics import median

import torch

from benchmarks.common import environment, run, seconds, table
from benchmarks.training import score, settings, small_corpus, start, train
from imdbattn.runs.trainer import quiet
from imdbattn.tasks.reviews.module import ReviewClassifier
from imdbattn.tasks.reviews.predictor import ReviewPredictor

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
# `prepare` sets the number of steps before torch is loaded.
CHILD = """
import imdbattn, json, sys
imdbattn.prepare()
from benchmarks.busy import rates
print(json.dumps(rates(int(sys.argv[1]))))
"""


@quiet()
def rates(threads: int) -> list[float]:
    """Returns the speed of the three kinds of work in this process."""
    start()
    torch.set_num_threads(threads)
    cfg = settings("model=residual_pe", "data.word_dropout=0")
    corpus = small_corpus(REVIEWS)
    tokens = int(corpus.splits["train"].lengths.clamp(max=cfg.data.max_tokens).sum())
    module = ReviewClassifier.new(cfg, corpus)
    predictor = ReviewPredictor(cfg, module.net, module.hparams, corpus.vectors)
    sentence = "A film that I did not expect to love, but I did. "
    texts = [sentence * (1 + n % 20) for n in range(REVIEWS)]
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
    own = ("OMP_", "GOMP_")
    env = {name: value for name, value in environment().items() if not name.startswith(own)}
    if steps:
        env["GOMP_SPINCOUNT"] = steps
    with ExitStack() as stack:
        for program in LOADS[load]:
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", program]))
            stack.callback(process.kill)
        try:
            output = run([sys.executable, "-c", CHILD, str(threads)], timeout=30, env=env)
        except subprocess.TimeoutExpired:
            return [float("nan")] * len(UNITS)
    return json.loads(output.splitlines()[-1])


def main() -> None:
    kinds = {
        "2 threads, as imdbattn chooses": ("", 2),
        "2 threads, 300,000 steps (torch's default)": ("300000", 2),
        **{f"2 threads, {int(steps):,} steps": (steps, 2) for steps in sys.argv[1:]},
        "1 thread": ("", 1),
    }
    rounds = defaultdict(list)
    for _, load, kind in itertools.product(range(ROUNDS), LOADS, kinds):
        rates_of_round = measure(*kinds[kind], load)
        rounds[kind, load].append(rates_of_round)
        print(f"{load}: {kind}", [round(rate, 1) for rate in rates_of_round], flush=True)
    for number, unit in enumerate(UNITS):
        lines = []
        for kind in kinds:
            measured = [[rates[number] for rates in rounds[kind, load]] for load in LOADS]
            lines.append([kind, *(f"{median(values):,.0f}" for values in measured)])
        print(f"\n{table([unit, *LOADS], lines)}", end="")


if __name__ == "__main__":
    main()
