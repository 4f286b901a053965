"""A search whose trials train nothing, so that they take milliseconds: `python -m tests.stand_in
+search=residual ...`.

The search starts this file instead of Python. As a trial it writes the files of a run, saves its
state after each epoch and on SIGTERM, and ends with the process that started it. Its accuracy
follows from its settings. As a sweep it gives each seed the same test accuracy.
"""

import ctypes
import json
import math
import os
import signal
import sys
import time
import zipfile
from pathlib import Path


def search() -> None:
    from imdbattn.search import main
    from imdbattn.tools.search import trials

    trials.POLL = 0.05  # seconds
    python = Path("python").resolve()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S {__file__} "$@"\n')
    python.chmod(0o755)
    sys.executable = str(python)
    main()


def settings_of(words: list[str]) -> dict[str, str]:
    return {name: value.strip("'") for name, _, value in (word.partition("=") for word in words)}


def trial(words: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    settings = settings_of(words)
    folder = Path(settings["hydra.run.dir"])
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
    (folder / "environment.json").write_text("{}")
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
    if sys.argv[1:4] == ["-m", "imdbattn.train", "-m"]:
        sweep(sys.argv[4:])
    elif sys.argv[1:3] == ["-m", "imdbattn.train"]:
        trial(sys.argv[3:])
    else:
        search()
