"""Lightning's logger for trackio, which keeps its runs on this machine.

https://github.com/gradio-app/trackio
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from lightning.pytorch.utilities import rank_zero_only

from imdbattn.settings.keys import Plain, flat
from imdbattn.tracking.loggers import RunLogger
from imdbattn.tracking.publish import tables_of_results


class TrackioLogger(RunLogger):
    """Logs curves and settings to a trackio project. Raises ImportError without trackio."""

    def __init__(self, project: str, name: str, **options: object) -> None:
        super().__init__()
        import trackio

        self._trackio = trackio
        self._options = {"project": project, "name": name, **options}
        self._config: dict[str, object] = {}
        self._started = False

    @property
    def name(self) -> str:
        return str(self._options["project"])

    @property
    def version(self) -> str:
        return str(self._options["name"])

    @rank_zero_only
    def log_hyperparams(self, params: Plain | Namespace, *args: object, **kwargs: object) -> None:
        """Keeps the settings; trackio takes them when the run starts."""
        given = vars(params) if isinstance(params, Namespace) else params
        self._config |= flat(given)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if not self._started:
            self._trackio.init(config=self._config, **self._options)
            self._started = True
        self._trackio.log(dict(metrics), step=step)

    def publish(self, folder: Path, metrics: Plain, values: Mapping[str, float]) -> None:
        """Logs tables and pictures; trackio has no summary, and values would be curves."""
        trackio = self._trackio
        rows = [{"result": name, "value": value} for name, value in values.items()]
        tables = {"results": pd.DataFrame(rows), **tables_of_results(folder, metrics)}
        media = {name: trackio.Table(dataframe=table) for name, table in tables.items()}
        for file in folder.glob("pictures/*.png"):
            media[f"pictures/{file.stem}"] = trackio.Image(str(file))
        self.log_metrics(media, step=metrics["steps"])

    def end(self, failed: bool) -> None:
        """Ends the run. Lightning's `finalize` comes before the results of a run are known."""
        if self._started:
            self._trackio.finish()
            self._started = False
