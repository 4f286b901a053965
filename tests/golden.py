"""Numbers that must not change with the code: `python -m tests.golden` writes them into
tests/golden.json.

`python -m tests.golden <folder> <file> [<model> ...]` measures them, or only those of some models,
in an empty folder and writes them elsewhere. None depends on the processor by more than the
tolerances of tests/test_golden.py.
"""

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import lightning as L
import torch

from tests.models import BEYOND, RUNGS
from tests.world import write_world

FILE = Path(__file__).with_name("golden.json")
ALONE = [*RUNGS, *(model for model in BEYOND if model not in ("pretrained", "distilled"))]
SEQ2SEQ = ("", "_attention", "_attention_dot", "_attention_scaled", "_attention_additive")
SEQ2SEQ += ("_bahdanau",)
COMMON = ["logger=csv", "trainer=cpu", "trainer.enable_progress_bar=false", "threads=1"]
COMMON += ["pictures=false", "trainer.max_epochs=1"]
PAIRS = ["task=seq2seq", "data.letters=5", "data.lengths=[1,5]", "data.train=120"]
PAIRS += ["data.validation=20", "data.test=20"]
SPLITS = ("test_fingerprint", "val_fingerprint", "source_key", "known_tokens", "train_count")
SPLITS += ("steps", "parameters")
LOSSES = ("val_loss", "test_loss")


def jobs(world: Path, folder: Path) -> dict[str, list[str]]:
    """The overrides that each model trains with for one epoch."""
    reviews = [f"data.path={world}/reviews.csv", f"data.vectors.path={world}/vectors.txt"]
    reviews += ["data.vectors.dim=10", f"data.cache_dir={folder}/cache", "data.batch_tokens=256"]
    found = {model: [f"model={model}", *reviews] for model in ALONE}
    found["masked_words"] = ["model=pretrained", "task=masked_words", "init=null", *reviews]
    # Without rounding to float32, the weights that it ends with are the same on all processors.
    found["masked_words"].append("trainer.precision=64-true")
    found["pretrained"] = ["model=pretrained", f"init={folder}/masked_words", *reviews]
    found["distilled"] = ["model=distilled", f"data.extra={folder}/labeled.csv", *reviews]
    found |= {f"seq2seq{name}": [*PAIRS, f"model=seq2seq{name}"] for name in SEQ2SEQ}
    probe = ["data=order_probe", "data.probe.train=40", "data.probe.validation=10"]
    # these vectors lack most of its words
    probe += ["data.probe.test=10", "data.min_known=0"]
    found["order_probe"] = ["model=residual_pe", *probe, *reviews[1:]]
    return {
        name: [*words, *COMMON, f"hydra.run.dir={folder}/{name}"] for name, words in found.items()
    }


def measure(folder: Path, models: list[str]) -> dict[str, dict]:
    """Trains these models, or all, with the train command in this process; returns numbers."""
    os.environ["WANDB_MODE"] = "offline"
    (world := folder / "world").mkdir()
    write_world(world)
    from imdbattn.predict import main as label
    from imdbattn.train import main

    start, numbers = L.Trainer.fit, dict[str, dict]()

    def fit(trainer: L.Trainer, module: L.LightningModule, *arguments, **more):
        weights = sorted(
            (w.numel(), float(w.sum()), float(w.norm()))
            for w in (w.detach().double() for w in module.parameters())
        )
        step, plan = module.training_step, []

        def training_step(batch, *rest):
            plan.append(batch.items_B.tolist())
            return step(batch, *rest)

        module.training_step = training_step
        start(trainer, module, *arguments, **more)
        batches = hashlib.sha256(json.dumps(plan).encode()).hexdigest()[:16]
        names = sorted(module.state_dict())
        numbers[name] = {"initial weights": weights, "names": names, "batches": batches}

    L.Trainer.fit = fit
    all_jobs = jobs(world, folder)
    for name in models or all_jobs:
        if name == "distilled":
            texts, table = f"file={world}/unlabeled.txt", f"out={folder}/labeled.csv"
            sys.argv[:] = ["predict", f"run={folder}/mean", texts, table]
            label()
        words = all_jobs[name]
        sys.argv[:] = ["train", *words]
        main()
        metrics = json.loads((folder / name / "metrics.json").read_text())
        numbers[name] |= {key: metrics[key] for key in (*SPLITS, *LOSSES) if key in metrics}
    numbers.get("distilled", {}).pop("source_key", None)  # with the last bits of its probabilities
    return numbers


def rounded(value: Any) -> Any:
    """Seven digits of each number."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, file = map(Path, sys.argv[1:3]) if len(sys.argv) > 2 else (None, FILE)
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(folder or Path(temporary), sys.argv[3:])
    lines = [f'"{name}": {json.dumps(rounded(numbers))}' for name, numbers in found.items()]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
