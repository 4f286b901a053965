"""A search whose trials train nothing, so that they take milliseconds: `python -m tests.stand_in
+search=residual ...`.

Instead of training, a trial writes the files of a run, and saves its state after each epoch and on
SIGTERM. Its accuracy follows from its settings. A sweep gives each seed the same test accuracy.
"""

import json
import math
import os
import signal
import sys
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path

from omegaconf import DictConfig

from imdbattn.launch.hydra_config import plain_dict
from imdbattn.tasks.task import task_of, validate


def search() -> None:
    from imdbattn.launch import job_process
    from imdbattn.search import main
    from imdbattn.tools.search import trials

    trials.execute = sweep
    job_process.POLL = 0.05  # seconds
    job_process.import_for_training = lambda settings: None
    job_process.run_single = run_trial
    main()


def run_trial(cfg: DictConfig) -> None:
    settings = validate(plain_dict(cfg))
    source = task_of(settings).find_source(settings.data)
    trial(cfg.hydra.overrides.task, cfg.hydra.runtime.output_dir, source.checksum)


def settings_of(words: Iterable[str]) -> dict[str, str]:
    return {name: value.strip("'") for name, _, value in (word.partition("=") for word in words)}


def trial(words: Iterable[str], output: str, source: str) -> None:
    settings = settings_of(words)
    folder = Path(output)
    log = folder.parent / "trained.log"
    lr, epochs = float(settings["optim.lr"]), int(settings.get("trainer.max_epochs", 4))
    if settings.get("model.net.layers") == "4":
        sys.exit("error: out of memory")
    checkpoint, state = (
        folder / "checkpoints" / "last.ckpt",
        {"epoch": 0, "curve": "epoch,step,val/accuracy\n"},
    )
    if "resume" in settings:
        state = json.loads(zipfile.ZipFile(checkpoint).read("state"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    checkpoint.parent.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("data: {source: packaged}\n")
    (folder / "environment.json").write_text(json.dumps({"source_key": source}))
    begun = time.time()
    for epoch in range(state["epoch"], epochs):
        time.sleep(float(os.environ.get("IMDBATTN_TEST_PAUSE", "0.01")))
        accuracy = (0.9 - 0.2 * abs(math.log10(lr) + 2)) * (1 - 0.5 ** (epoch + 1))
        state = {"epoch": epoch + 1, "curve": f"{state['curve']}{epoch},{epoch},{accuracy}\n"}
        (folder / "metrics.csv").write_text(state["curve"])
        with zipfile.ZipFile(checkpoint, "w") as file:
            file.writestr("state", json.dumps(state))
        with log.open("a") as file:
            file.write(f"{folder.name} {epoch + 1} {begun} {time.time()}\n")
    test = {} if settings.get("test") == "false" else {"test_accuracy": accuracy}
    (folder / "metrics.json").write_text(json.dumps({"val_accuracy": accuracy} | test))


def sweep(words: list[str]) -> None:
    settings = settings_of(words)
    folder = Path(settings["hydra.sweep.dir"])
    for seed in settings["seed"].split(","):
        job = folder / f"base-s{seed}"
        job.mkdir(parents=True)
        (job / "metrics.json").write_text(json.dumps({"test_accuracy": 0.5, "settings": settings}))
        with (folder / "sweep.jsonl").open("a") as file:
            file.write(json.dumps({"job": job.name, "status": "done", "reason": ""}) + "\n")


if __name__ == "__main__":
    search()
