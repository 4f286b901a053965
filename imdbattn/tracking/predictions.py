"""A W&B table of the predictions for the same validation items at each validation."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.loggers import WandbLogger

from imdbattn.errors import only_warning

log = logging.getLogger(__name__)

KEY = "predictions/over_time"
ITEMS = 50  # at most; evenly spaced in the split, so that all classes are among them
COLUMNS = ["epoch", "row", "text", "label", "predicted", "probability"]


class PredictionsOverTime(L.Callback):
    """Logs a table under one key, to which each validation adds its rows (`log_mode` INCREMENTAL),
    so that W&B shows how the prediction of an item changes.

    rows: at most, of each validation. characters: at most of a text.
    """

    def __init__(self, rows: int, characters: int):
        self.rows, self.characters = min(rows, ITEMS), characters
        self.table: Any = None
        self.texts: Any = None  # a pandas Series, by row in the source

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                with only_warning(log, "W&B: predictions were not logged"):
                    self.add(trainer, module, logger.experiment)

    def add(self, trainer: Any, module: Any, run: Any) -> None:
        import wandb

        columns = module.scores.columns()
        if "predicted" not in columns:
            return
        data = trainer.datamodule
        if self.table is None:
            self.table = wandb.Table(columns=[*COLUMNS], log_mode="INCREMENTAL")
            self.texts = texts_of(data)
        names = module.hparams.get("labels")
        places = np.linspace(0, len(columns["label"]) - 1, self.rows)
        for place in np.unique(places.round().astype(int)).tolist():
            row = int(data.corpus.splits["validation"].rows[int(module.scores.rows_N[place])])
            label, predicted = columns["label"][place], columns["predicted"][place]
            self.table.add_data(
                trainer.current_epoch + 1,
                row,
                self.texts[row][: self.characters],
                names[label] if names else label,
                names[predicted] if names else predicted,
                float(columns["probability"][place]),
            )
        run.log({KEY: self.table, "epoch": trainer.current_epoch})


def texts_of(data: Any) -> Any:
    """The texts of validation by their row in the source."""
    import pandas as pd

    with TemporaryDirectory() as temporary:
        file = Path(temporary, "texts.parquet")
        data.save_texts("validation", file)
        return pd.read_parquet(file).set_index("row")["text"]
