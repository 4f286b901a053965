"""A W&B table of the predictions for the same validation items at each validation."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import lightning as L
import numpy as np
from lightning.pytorch.loggers import WandbLogger

from imdbattn.errors import only_warning
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData

if TYPE_CHECKING:
    import pandas as pd
    import wandb

log = logging.getLogger(__name__)

KEY = "predictions/over_time"
ITEMS = 50  # at most; evenly spaced in the split, so that all classes are among them
TABLE_COLUMNS = ["epoch", "row", "text", "label", "predicted", "probability"]


class PredictionsOverTime(L.Callback):
    """Logs a table under one key, to which each validation adds its rows (`log_mode` INCREMENTAL),
    so that W&B shows how the prediction of an item changes.

    Args:
        rows: The largest number of rows of each validation.
        characters: The largest number of characters of a text.
    """

    def __init__(self, rows: int, characters: int):
        self.rows = min(rows, ITEMS)
        self.characters = characters
        self.table: wandb.Table | None = None
        self.texts: pd.Series | None = None  # by row in the source

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, Learner)
        if trainer.state.fn != "fit":
            return
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                with only_warning(log, "W&B: predictions were not logged"):
                    self.add(trainer, module, logger.experiment)

    def add(self, trainer: L.Trainer, module: Learner, run: "wandb.Run") -> None:
        """Adds the rows of this validation, and logs the table."""
        import wandb

        columns = module.scores.columns()
        if "predicted" not in columns:
            return
        data: BatchData = trainer.datamodule  # type: ignore[attr-defined]
        if self.table is None or self.texts is None:
            self.table = wandb.Table(columns=[*TABLE_COLUMNS], log_mode="INCREMENTAL")
            self.texts = texts_of(data)
        names = module.hparams.get("labels")
        spaced = np.linspace(0, len(columns["label"]) - 1, self.rows)
        for item in np.unique(spaced.round().astype(int)).tolist():
            row = int(data.corpus.splits["validation"].rows[int(module.scores.items_N[item])])
            label = columns["label"][item]
            predicted = columns["predicted"][item]
            self.table.add_data(
                trainer.current_epoch + 1,
                row,
                self.texts[row][: self.characters],
                names[label] if names else label,
                names[predicted] if names else predicted,
                float(columns["probability"][item]),
            )
        run.log({KEY: self.table, "epoch": trainer.current_epoch})


def texts_of(data: BatchData) -> "pd.Series":
    """Returns the texts of validation by their row in the source."""
    import pandas as pd

    with TemporaryDirectory() as temporary:
        file = Path(temporary, "texts.parquet")
        data.save_texts("validation", file)
        return pd.read_parquet(file).set_index("row")["text"]
