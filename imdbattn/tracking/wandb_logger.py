"""Lightning's logger for W&B, which never stops a run (wandb_run) and has its results."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from lightning.pytorch import loggers
from pydantic import Field

from imdbattn.errors import UserError
from imdbattn.settings.keys import Plain
from imdbattn.settings.schema import Amount, Count, LoggerSettings
from imdbattn.tracking.loggers import RunLogger, StartedRun
from imdbattn.tracking.publish import publish_run, send_changes, send_model
from imdbattn.tracking.wandb_run import finish_wandb, start_wandb


class WandbSettings(LoggerSettings):
    """The settings of conf/logger/wandb.yaml, and arguments of wandb.init."""

    mode: Literal["online", "offline", "disabled"] | None
    timeout: Amount
    table_rows: Annotated[int, Field(ge=0, le=10_000)]
    table_characters: Count
    git: bool
    artifacts: bool

    def check(self) -> None:
        import wandb

        known = inspect.signature(wandb.init).parameters
        if others := [name for name in self.model_extra or () if name not in known]:
            from imdbattn.settings.messages import no_setting

            raise UserError(no_setting(others[0], known))


class WandbLogger(RunLogger, loggers.WandbLogger):
    """Logs a run to W&B: online, or offline without a key or a network."""

    settings = WandbSettings

    def __init__(self, **settings: Any) -> None:
        super().__init__(project=settings.get("project") or "imdbattn")
        self._settings = settings

    def start(self, run: StartedRun) -> bool:
        rung = run.settings["model"]["name"]
        data = run.settings["data"]
        source = data["source"]
        tags = [rung, source if isinstance(source, str) else "custom source"]
        if "tokenizer" in data:
            tokenizer = data["tokenizer"]
            tags.append(tokenizer if isinstance(tokenizer, str) else "custom tokenizer")
        config = {"rung": rung, **run.settings, "environment": run.environment}
        fields = {"run_name": run.name, "run_job_type": "train", "run_tags": tags}
        self._experiment = start_wandb(self._settings, run.folder, config, run.resume, **fields)
        if self._experiment is not None and self._settings["git"]:
            send_changes(self._experiment)
        return self._experiment is not None

    def publish(self, folder: Path, metrics: Plain, values: Mapping[str, float]) -> None:
        rows = self._settings["table_rows"]
        characters = self._settings["table_characters"]
        publish_run(self.experiment, folder, metrics, values, rows, characters)
        if self._settings["artifacts"]:
            send_model(self.experiment, folder, self.experiment.config.get("trust"))

    def log_shares(self, shares: Mapping[str, np.ndarray], epoch: int, step: int) -> None:
        import wandb

        edges = np.linspace(0, 1, 21)
        logged: dict[str, object] = {}
        for name, values in shares.items():
            counts = np.histogram(values, edges)
            logged[f"attention_queries/{name}"] = wandb.Histogram(np_histogram=counts)
        # epoch and step as Lightning logs them
        self.experiment.log({**logged, "epoch": epoch, "trainer/global_step": step})

    def end(self, failed: bool) -> None:
        finish_wandb(self.experiment, failed)
