"""One job: settings in, a run folder out."""

import contextlib
import logging
import os
import shlex
import socket
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from filelock import FileLock, Timeout
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import OmegaConf

from imdbattn.errors import UserError
from imdbattn.files import make_folder, write_atomically, writing_into
from imdbattn.run_folder import check_folder, environment, temporary_files, write_json, write_predictions
from imdbattn.runs.callbacks import Finite, Throughput
from imdbattn.runs.checkpoint import RESTART, check_state, read_checkpoint
from imdbattn.runs.keeper import Keeper, signals_end_it
from imdbattn.runs.resume import finished, pinned
from imdbattn.settings.cli import SWEEP_PID
from imdbattn.settings.keys import SPLIT_FILES, is_debug, results_file
from imdbattn.settings.safety import read_json, trust_option
from imdbattn.tasks.build import build_trainer, compile_net, reason
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData
from imdbattn.tasks.task import task_of
from imdbattn.tracking.loggers import build_loggers, check_logger, finish_loggers
from imdbattn.tracking.publish import publish_run
from imdbattn.tracking.wandb_run import upload_command

log = logging.getLogger(__name__)

PATIENCE = 20.0  # seconds


def quiet() -> None:
    """Silences what Lightning says to everybody: devices that are not there, workers that would not help."""
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    warnings.filterwarnings("ignore", ".*is smaller than the logging interval.*")
    warnings.filterwarnings("ignore", ".*but have no `val_dataloader`.*")
    warnings.filterwarnings("ignore", ".*your dataloader is not resumable.*")  # our sampler goes on where it was
    warnings.filterwarnings("ignore", ".*sync_dist=True.*")  # what we log is the same in all processes
    warnings.filterwarnings("ignore", ".*Checkpoint directory .* exists and is not empty.*")
    warnings.filterwarnings("ignore", ".*Experiment logs directory .* exists and is not empty.*")
    warnings.filterwarnings("ignore", ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*")
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)


def fit(cfg: Mapping[str, Any], folder: Path, resume: bool = False) -> dict[str, Any]:
    """Trains the model that `cfg` describes, scores its best checkpoint once, and fills the run folder.

    resume: continue from what the folder holds of this run; otherwise that is overwritten.
    Returns what metrics.json holds. Raises UserError for wrong input, before anything in the folder is deleted or
    overwritten; SystemExit after a signal that asks to stop.
    """
    quiet()
    check_folder(folder)
    if not (resume and finished(folder)):
        make_folder(folder, way_out := "choose another hydra.run.dir")
        with writing_into(folder, way_out), alone_in(folder), signals_end_it():
            if not (resume and finished(folder)):  # by another process, which this one has waited for
                return fill(cfg, folder, resume)
    metrics = read_json(file := folder / "metrics.json")
    try:
        lines = report(metrics, folder)
        metrics["val_accuracy"] + 0.0
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file} is not what a run writes ({error}): delete it, and resume= scores the run") from error
    for line in ("This run was finished before:", *lines):
        log.info(line)
    return metrics


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Raises UserError where another run works in the folder, and does not end in a few seconds as one that saves."""
    if rank_zero_only.rank:  # type: ignore[attr-defined] # the first process speaks for all
        yield
        return
    lock = FileLock(folder / ".lock", timeout=PATIENCE)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"a run in {folder} still goes on: wait for it, or choose another hydra.run.dir") from None
    try:
        yield
    finally:
        (folder / ".lock").unlink(missing_ok=True)
        lock.release()


def fill(cfg: Mapping[str, Any], folder: Path, resume: bool) -> dict[str, Any]:
    """What `fit` does once there is a folder."""
    check_logger(cfg["logger"])
    if cfg["threads"]:
        torch.set_num_threads(cfg["threads"])
    L.seed_everything(cfg["seed"], workers=True, verbose=False)
    task = task_of(cfg)
    corpus = task.prepare(cfg["data"])
    data = task.data(cfg, corpus)
    cfg = pinned(cfg, corpus.source, data.batch_tokens)
    last = folder / "checkpoints" / "last.ckpt"
    saved = read_checkpoint(last) if resume and last.exists() else None
    resumes = saved is not None
    module = task.new(cfg, corpus, saved)
    try_forward(module, data, cfg["model"]["name"])
    if cfg["compile"]:
        compile_net(module.net, cfg["compile"])

    throughput, finite = Throughput(), Finite(corpus.splits["train"].rows)

    def begin(trainer: L.Trainer) -> None:
        if trainer.is_global_zero:
            stale = ["metrics.json", "debug.json", *(name for names in SPLIT_FILES.values() for name in names)]
            for name in stale if resumes else (*stale, "metrics.csv", "checkpoints/last.ckpt", "checkpoints/best.ckpt"):
                (folder / name).unlink(missing_ok=True)  # of an earlier run into the same folder
            for left in temporary_files(folder):  # of a writer that was killed
                left.unlink(missing_ok=True)
            write_atomically(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(cfg))))
            write_json(folder / "environment.json", environment() | {"source_key": corpus.source_key})
            if not is_debug(cfg):
                link_latest(folder)
        trainer.loggers = build_loggers(cfg["logger"], folder, cfg, resume)

    keeper = Keeper(folder, corpus.fingerprints, finite, cfg["save_minutes"], begin)
    chosen, mode = f"val/{cfg['choose_by']}", "min" if cfg["choose_by"] == "loss" else "max"
    best = ModelCheckpoint(
        folder / "checkpoints",
        "best",
        monitor=chosen,
        mode=mode,
        save_weights_only=True,
        enable_version_counter=False,
    )
    callbacks: list[L.Callback] = [keeper, finite, throughput, best, LearningRateMonitor("epoch")]
    if cfg["patience"]:
        callbacks.append(EarlyStopping(chosen, mode=mode, patience=cfg["patience"], strict=False))
    trainer = build_trainer(cfg["trainer"], callbacks, default_root_dir=folder)
    trainer.precision_plugin.convert_module(module)  # Lightning does it after it has loaded a checkpoint, which rounds
    optimizer = module.try_optimizer(trainer.strategy.root_device)
    if trainer.is_global_zero and trainer.world_size > 1:
        check_port()
    failed = True
    try:
        try:
            if saved:
                check_state(saved, module, optimizer, trainer)
            del saved, optimizer
            trainer.fit(module, data, ckpt_path=last if resumes else None)
            keeper.start(trainer)  # where training was done before
        except UserError:
            raise
        except Exception as error:
            if keeper.begun:
                raise
            said = f"{last} cannot be resumed: {reason(error)}; {RESTART}" if resumes else f"trainer: {reason(error)}"
            raise UserError(said) from error
        if trainer.is_global_zero:
            keeper.obey(keeper.asked, trainer)  # a signal between its last step and here
        metrics = run_facts(cfg, corpus) | {
            "parameters": sum(p.numel() for p in module.parameters() if p.requires_grad),
            "train_reviews": len(corpus.splits["train"]),
            "epochs": trainer.current_epoch,
            "steps": trainer.global_step,
            "train_seconds": throughput.seconds,
            "epoch_seconds": throughput.seconds / max(trainer.current_epoch, 1),
            "tokens_per_s": throughput.rate,
        }
        if "start" in module.hparams:
            metrics["start"] = module.hparams["start"]
        if not best.best_model_path and not cfg["trainer"]["fast_dev_run"]:  # stopped before the first validation
            trainer.save_checkpoint(folder / "checkpoints" / "best.ckpt", weights_only=True)
        if best.best_model_path:
            module = task.trained(cfg, Path(best.best_model_path), corpus)
        kept, trainer.loggers = trainer.loggers, []  # this is no further point of the learning curve
        trainer.validate(module, data, verbose=False)
        trainer.loggers = kept
        metrics |= score_facts("val", module.scores)
        scores = {"validation": module.scores}
        if cfg["test"]:
            trainer.test(module, data, verbose=False)
            metrics |= score_facts("test", module.scores)
            scores["test"] = module.scores
        if trainer.is_global_zero:
            for split, found in scores.items():
                predictions, texts = SPLIT_FILES[split]
                write_predictions(folder / predictions, found, corpus.splits[split].rows)
                task.keep_texts(corpus, split, folder / texts)
            if cfg["pictures"]:
                task.draw(module, corpus, cfg, folder)
            write_json(folder / results_file(cfg), metrics)  # the last
            publish_run(folder, metrics)
        failed = False
    except SystemExit:
        for line in keeper.said:
            log.warning(line)
        raise
    finally:
        finish_loggers(failed)
    if trainer.is_global_zero and is_debug(cfg):
        log.info("Debug run: %d training steps and an evaluation ran; the numbers are not results", metrics["steps"])
    elif trainer.is_global_zero:
        for line in report(metrics, folder):
            log.info(line)
    return metrics


def try_forward(module: Learner, data: BatchData, name: str) -> None:
    """Raises UserError where the model fails on two validation items: it may be made of a user's own parts."""
    batches = data.eval_batches("validation")
    few = np.arange(min(2, len(batches.lengths_N())))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module.eval().show(batches[0, few])
    except Exception as error:
        raise UserError(f"model={name} fails on two validation items: {reason(error)}") from error
    finally:
        module.train()


def check_port() -> None:
    """Raises UserError when another program has the port that is named for our processes to meet at."""
    port = os.environ.get("MASTER_PORT")
    if port is None or torch.distributed.is_torchelastic_launched():  # whose store is there already
        return
    try:
        socket.create_server(("", int(port))).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(f"MASTER_PORT={port} cannot be used ({error}): choose another, or unset it") from error


def run_facts(cfg: Mapping[str, Any], corpus) -> dict[str, Any]:
    """What a result belongs to: rung, seed, test set."""
    return {
        "model": cfg["model"]["name"],
        "seed": cfg["seed"],
        "test_set": corpus.test_set,
        "test_fingerprint": corpus.fingerprints.get("test"),
        "val_fingerprint": corpus.fingerprints.get("validation"),
        "source_key": corpus.source_key,
        **corpus.facts(),
    }


def score_facts(name: str, scores: Any) -> dict[str, Any]:
    prefix = f"{name}_" if name else ""
    count = getattr(scores, "answers", len(scores.rows_N))
    return {prefix + key: value for key, value in {**scores.values(), "reviews": count}.items()}


def report(metrics: Mapping[str, Any], folder: Path) -> list[str]:
    """The last lines a person sees. Raises KeyError, TypeError or ValueError where metrics lack a number."""
    done = "{model}, seed {seed}: {epochs:d} epoch{s} in {train_seconds:.0f} s, {tokens_per_s:.0f} tokens/s"
    lines = ["", done.format(s="s" * (metrics["epochs"] != 1), **metrics)]
    items = metrics.get("items", "reviews")
    for split, name in (("val", "validation"), ("test", "test")):
        if (accuracy := metrics.get(f"{split}_accuracy")) is not None:
            bleu = f", BLEU {metrics[f'{split}_bleu']:.1f}" if f"{split}_bleu" in metrics else ""
            count = metrics[f"{split}_reviews"]
            lines.append(f"{name + ' accuracy':20} {100 * accuracy:6.2f} %  of {count:d} {items}{bleu}")
    if "test_accuracy" in metrics:
        lines.append(f"test set             {metrics['test_set']} [{metrics['test_fingerprint']}]")
    lines.append(f"run folder           {os.path.relpath(folder)}")
    if not os.environ.get(SWEEP_PID):  # a sweep ends with its comparison
        lines += ["next:", *(f"  {line}" for line in next_commands(metrics, folder))]
    return lines


def next_commands(metrics: Mapping[str, Any], folder: Path) -> list[str]:
    """Commands to use a finished run with."""
    run = shlex.quote(os.path.relpath(folder)) + trust_option(folder / "config.yaml")
    if metrics.get("items") == "masked words":
        commands = [f"python -m imdbattn.train model=pretrained init={run}"]
    else:
        runs = "runs" if Path("runs").resolve() in folder.resolve().parents else os.path.relpath(folder.parent)
        commands = [
            f'python -m imdbattn.predict run={run} text="..."',
            f"python -m imdbattn.compare runs={shlex.quote(runs)}",
        ]
    return [*commands, *filter(None, [upload_command(folder)])]


def link_latest(folder: Path) -> None:
    """Makes runs/latest point to this run, where it lies under runs/ and the file system has links."""
    runs = Path("runs").resolve()
    if runs in folder.resolve().parents:
        with contextlib.suppress(OSError):
            link = runs / f".latest-{os.getpid()}"
            link.symlink_to(os.path.relpath(folder.resolve(), runs))
            link.replace(runs / "latest")
