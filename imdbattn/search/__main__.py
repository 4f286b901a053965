"""Searches for good settings: `python -m imdbattn.search +search=residual n_trials=30`."""

import logging
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from imdbattn.errors import UserError
from imdbattn.files import write_atomically, writing_into
from imdbattn.settings.cli import SWEEP_PID, command, conf_dir, explain, plain_dict, print_error, quote
from imdbattn.settings.keys import PATHS
from imdbattn.settings.safety import read_settings

if TYPE_CHECKING:
    import optuna

    from imdbattn.settings.schema import Search

log = logging.getLogger(__name__)

CHANGEABLE = ("resume", "trust", "n_trials", "n_jobs", "seeds")  # settings that may differ in a resumed search
WAY_OUT = "choose another hydra.run.dir"
FILE = "search.yaml"  # the settings of a search, in conf/ and in its folder


def main() -> None:
    """Settings that conf/search.yaml does not have are those of all trials."""
    if {"-m", "--multirun"} & set(sys.argv):
        print_error("a search starts its trials itself: omit -m, and give each setting one value")
        sys.exit(2)
    own = {"search", "hydra", *OmegaConf.load(conf_dir() / FILE)} - {"space"}
    others = [word for word in sys.argv[1:] if "=" in word and word[0] != "-" and name_of(word) not in own]
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in others]
    command("search", "resume")(lambda cfg: search(cfg, [quote(word, PATHS) for word in others]))()


def name_of(word: str) -> str:
    """The first part of the key in an override."""
    return re.split(r"[=./@]", word.lstrip("+~"))[0]


def search(cfg: DictConfig, others: list[str]) -> None:
    """Runs the trials, writes the results, and trains the best settings with several seeds.

    others: overrides of the space, and of the settings of all trials.
    """
    from imdbattn.settings.schema import Search, validate_as  # pydantic, for which `--help` does not wait

    values, folder = plain_dict(cfg), Path(HydraConfig.get().runtime.output_dir).resolve()
    if values["resume"]:
        values = resumed(values, others, folder)
    else:
        values["train"] += [word for word in others if name_of(word) != "space"]
        values["space"] = varied(values["space"], others)
    settings = validate_as(Search, values)
    if not settings.resume and {file.name for file in folder.iterdir()} - {"search.log"}:
        raise UserError(f"{os.path.relpath(folder)} is not empty: resume={os.path.relpath(folder)}, or {WAY_OUT}")
    try:
        from imdbattn.search import trials
    except ImportError as error:
        if not (error.name or "").startswith("optuna"):
            raise
        raise UserError("the search needs Optuna 4.7 or newer: pip install 'imdbattn[search]'") from error
    space, common = trials.check(settings, folder / FILE)
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"{os.path.relpath(folder)} belongs to a search that is still running: wait for it") from None
    os.environ[SWEEP_PID] = str(os.getpid())  # trials end with this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # runs the finally clauses
    with lock, writing_into(folder, WAY_OUT):
        write_atomically(folder / FILE, OmegaConf.to_yaml(OmegaConf.create(settings.model_dump())))
        try:
            complete(settings, trials.run_trials(settings, space, common, folder), folder)
        except (KeyboardInterrupt, SystemExit):
            log.warning("stopped; resume it with:  python -m imdbattn.search resume=%s", os.path.relpath(folder))
            raise


def resumed(values: dict[str, Any], others: list[str], folder: Path) -> dict[str, Any]:
    """The settings of the search in `folder`, with those of CHANGEABLE that were typed. Raises UserError for others."""
    if not (folder / FILE).exists():
        raise UserError(f"resume={values['resume']} is not a folder of a search, it has no {FILE}")
    typed = {word.lstrip("+~").partition("=")[0]: word for word in (*HydraConfig.get().overrides.task, *others)}
    if fixed := [word for name, word in typed.items() if name not in CHANGEABLE]:
        raise UserError(f"resume={values['resume']} uses that search's own settings: omit {fixed[0]}")
    # `trust` is never the folder's own value
    return read_settings(folder / FILE) | {name: values[name] for name in ("trust", *typed)}


def varied(space: dict[str, Any], others: list[str]) -> dict[str, Any]:
    """The space with the typed `space.<setting>=<values>`, and without settings that have a typed value."""
    space = {name: values for name, values in space.items() if not any(o.startswith(f"{name}=") for o in others)}
    try:
        typed = OverridesParser.create().parse_overrides([word for word in others if name_of(word) == "space"])
    except HydraException as error:
        raise UserError(explain(error, "search", others)) from error
    for override in typed:
        name, value = override.key_or_group.partition("space.")[2], override.value()
        if not name and not isinstance(value, dict):
            raise UserError(f"{override.input_line} must be a group, such as space.model.layers=[1,2,3]")
        space |= {name: value} if name else value
    return space


def complete(settings: "Search", study: "optuna.Study", folder: Path) -> None:
    """Writes the results of the trials, trains the best settings with each seed, and adds the test accuracies."""
    from imdbattn.search import report, trials  # matplotlib

    words = trials.final_words(settings, study)
    line = shlex.join(["python", "-m", "imdbattn.train", *["-m"] * (settings.seeds > 1), *words])
    summary = report.summarize(study, line)
    report.write(summary, folder)
    report.print_best(summary)
    if settings.seeds:
        summary["test_accuracies"] = trials.retrain(settings, words, folder)
        report.write(summary, folder)
    log.info("search               %s", os.path.relpath(folder / "search.md"))
    test = report.test_accuracy(summary)
    log.info("%s  %s", f"test accuracy        {test}, by:" if test else "the best settings:", line)


if __name__ == "__main__":
    main()
