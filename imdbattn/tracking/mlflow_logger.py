"""Lightning's logger for MLflow, with the files of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import loggers

from imdbattn.tracking.loggers import RunLogger


class MLFlowLogger(RunLogger, loggers.MLFlowLogger):
    """Logs curves, settings and results, pictures, predictions and metrics.json."""

    def publish(self, folder: Path, metrics: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        super().publish(folder, metrics, values)
        for file in (*folder.glob("pictures/*"), *folder.glob("*predictions.parquet")):
            self.experiment.log_artifact(self.run_id, str(file), file.parent.name)
        self.experiment.log_artifact(self.run_id, str(folder / "metrics.json"))
