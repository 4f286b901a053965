"""Lightning's logger for MLflow, with the tables and files of a run."""

from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch import loggers

from imdbattn.settings.keys import Plain
from imdbattn.tracking.loggers import RunLogger
from imdbattn.tracking.publish import tables_of_results


class MLFlowLogger(RunLogger, loggers.MLFlowLogger):
    """Logs curves, settings and results, and as files tables, pictures and metrics.json.

    The scores are metrics of one point, which MLflow shows as its summary and by which it sorts;
    size and speed are parameters.
    """

    def publish(self, folder: Path, metrics: Plain, values: Mapping[str, float]) -> None:
        client = self.experiment
        run = self.run_id
        scores = {name: value for name, value in values.items() if "/" in name}
        self.log_metrics(scores, step=metrics["steps"])
        others = {f"result.{name}": values[name] for name in values if name not in scores}
        self.log_hyperparams(others)
        for name, table in tables_of_results(folder, metrics).items():
            client.log_table(run, table, f"{name}.json")
        for file in folder.glob("pictures/*"):
            client.log_artifact(run, str(file), "pictures")
        for file in (*folder.glob("*predictions.parquet"), folder / "metrics.json"):
            client.log_artifact(run, str(file))
