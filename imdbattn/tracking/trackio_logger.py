"""Lightning's logger for trackio, which keeps its runs on this machine.

https://github.com/gradio-app/trackio
"""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from imdbattn.settings.keys import flat
from imdbattn.tracking.loggers import RunLogger


class TrackioLogger(RunLogger):
    """Logs curves and settings to a trackio project. Raises ImportError without trackio."""

    def __init__(self, project: str, name: str, **options: Any) -> None:
        super().__init__()
        import trackio

        self._trackio = trackio
        self._options = {"project": project, "name": name, **options}
        self._config: dict[str, Any] = {}
        self._started = False

    @property
    def name(self) -> str:
        return str(self._options["project"])

    @property
    def version(self) -> str:
        return str(self._options["name"])

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Keeps the settings; trackio takes them when the run starts."""
        given = vars(params) if isinstance(params, Namespace) else params
        self._config |= flat(given)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if not self._started:
            self._trackio.init(config=self._config, **self._options)
            self._started = True
        self._trackio.log(dict(metrics), step=step)

    def end(self, failed: bool) -> None:
        """Ends the run. Lightning's `finalize` comes before the results of a run are known."""
        if self._started:
            self._trackio.finish()
            self._started = False
