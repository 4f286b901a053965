"""Lightning's logger for TensorBoard, with the tables and pictures of a run."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from lightning.pytorch import loggers

from imdbattn.settings.keys import Plain, flat
from imdbattn.tracking.loggers import RunLogger, StartedRun
from imdbattn.tracking.publish import tables_of_results


class TensorBoardLogger(RunLogger, loggers.TensorBoardLogger):
    """Logs curves; settings with the scores under HPARAMS; tables as text, and pictures."""

    def start(self, run: StartedRun) -> bool:
        self._run_settings = flat(run.settings)
        rows = [(name, str(value)) for name, value in self._run_settings.items()]
        table = pd.DataFrame(rows, columns=["setting", "value"])
        self.experiment.add_text("settings", as_markdown(table))
        return True

    def log_shares(self, shares: Mapping[str, np.ndarray], epoch: int, step: int) -> None:
        for name, values in shares.items():
            self.experiment.add_histogram(f"attention_queries/{name}", values, step)

    def publish(self, folder: Path, metrics: Plain, values: Mapping[str, float]) -> None:
        from matplotlib.image import imread

        writer = self.experiment
        step = metrics["steps"]
        # TensorBoard reads the values of this page from curves, here of one point
        scores = {name: value for name, value in values.items() if "/" in name}
        self.log_hyperparams(self._run_settings, scores)
        results = pd.DataFrame(list(values.items()), columns=["result", "value"])
        tables = {"results": results, **tables_of_results(folder, metrics)}
        for name, table in tables.items():
            writer.add_text(name, as_markdown(table), step)
        for file in folder.glob("pictures/*.png"):
            pixels = np.uint8(255 * imread(file)[..., :3])
            writer.add_image(f"pictures/{file.stem}", pixels, step, dataformats="HWC")
        writer.flush()


def as_markdown(table: pd.DataFrame) -> str:
    """Returns a table whose cells are shown as they are."""
    lines = [[str(name) for name in table], ["---"] * len(table.columns)]
    for row in table.itertuples(index=False):
        lines.append(list(map(as_cell, row)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_cell(value: object) -> str:
    """Returns the text of a cell in one line, without characters that Markdown or HTML reads."""
    text = f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
    for sign in "&<>|*_`[]\\":
        text = text.replace(sign, f"&#{ord(sign)};")
    return text
