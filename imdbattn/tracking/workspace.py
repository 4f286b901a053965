"""A W&B workspace, whose panels show what imdbattn.tracking and Lightning log.

Needs the extra `dashboard`. Nothing is sent before the workspace is saved.
"""

from typing import Any

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces.reports.v2.interface import PanelTypes

CURVES = ("val/accuracy", "val/loss", "train/accuracy", "train/loss")
GRADIENTS = ("train/gradient_norm", "train/gradient_norm_max")
PICTURES = ("learning_curves", "positions", "attention", "attention_entropy", "page")
COMPARISON = ("page", "accuracies", "entropy")
VARIED = ("rung", "model.net.layers", "data.word_dropout", "optim.lr", "attention_entropy")
BEST = "best/val_accuracy"


def build_workspace(entity: str, project: str, group: str | None, by: str) -> ws.Workspace:
    """Returns the workspace of a project.

    group: a sweep, to show only its runs. by: the setting by which runs are grouped.
    """
    sections = []
    for name, panels in panels_by_section(by).items():
        sections.append(ws.Section(name=name, panels=panels, is_open=True))
    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"The ladder: {group}" if group else "The ladder",
        sections=sections,
        settings=ws.WorkspaceSettings(max_runs=100),
        runset_settings=ws.RunsetSettings(
            # the library's own filters cannot quote
            filters=f"Metric('Group') == {group!r}" if group else "",
            pinned_columns=["config:rung.value", "config:seed.value", f"summary:{BEST}"],
        ),
    )


def panels_by_section(by: str) -> dict[str, list[PanelTypes]]:
    """Returns the panels of each section, with mean and deviation of each group of runs."""
    grouped: dict[str, Any] = {
        "groupby": wr.Config(by),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
        "max_runs_to_show": 500,
    }
    columns = [wr.ParallelCoordinatesPlotColumn(wr.Config(name)) for name in VARIED]

    def bars(metric: str, title: str, unit: str) -> wr.BarPlot:
        return wr.BarPlot(
            title=title, metrics=[metric], title_x=unit, max_bars_to_show=50, **grouped
        )

    def curves(title: str, x: str = "epoch", **metrics: Any) -> wr.LinePlot:
        return wr.LinePlot(title=title, x=x, title_x=x, smoothing_type="none", **metrics, **grouped)

    def accuracy_over(metric: str, title: str) -> wr.ScatterPlot:
        x = wr.SummaryMetric(metric)
        y = wr.SummaryMetric(BEST)
        return wr.ScatterPlot(title=f"Validation accuracy over {title}", x=x, y=y, log_x=True)

    def media(key: str) -> wr.MediaBrowser:
        return wr.MediaBrowser(title=key.rpartition("/")[2], media_keys=[key])

    return {
        "Accuracy": [
            bars(BEST, "Validation accuracy", "share of reviews"),
            bars("test/accuracy", "Test accuracy", "share of reviews"),
            wr.WeavePanelSummaryTable(table_name="comparison/variants"),
        ],
        "Sweep": [
            wr.ParallelCoordinatesPlot(
                title="Settings and validation accuracy",
                columns=[*columns, wr.ParallelCoordinatesPlotColumn(wr.SummaryMetric(BEST))],
            ),
            wr.ParameterImportancePlot(with_respect_to=BEST),
            wr.RunComparer(diff_only=True),
        ],
        "Learning curves": [curves(name, y=[name]) for name in CURVES],
        "Training": [
            # its name contains those of the optimizer and of each parameter group
            curves("Learning rate", x="trainer/global_step", metric_regex="lr-.*"),
            *(curves(name, y=[name]) for name in GRADIENTS),
        ],
        "Attention over time: entropy as a share of that of equal weights": [
            curves("all reviews", metric_regex="attention_share/.*"),
            curves("right reviews", metric_regex="attention_share_right/.*"),
            curves("wrong reviews", metric_regex="attention_share_wrong/.*"),
        ],
        "Time": [
            accuracy_over("train_seconds", "training time (s)"),
            accuracy_over("parameters", "trained parameters"),
            bars("epoch_seconds", "Seconds per epoch", "s"),
            bars("tokens_per_s", "Training words per second", "1/s"),
        ],
        "Predictions": [
            wr.CustomChart(
                query={"summaryTable": {"tableKey": "test/confusion_matrix_table"}},
                chart_name="wandb/confusion_matrix/v1",
                chart_fields={name: name for name in ("Actual", "Predicted", "nPredictions")},
                chart_strings={"title": "Confusion, test"},
            ),
            wr.WeavePanelSummaryTable(table_name="test/predictions"),
        ],
        "Pictures": [media(f"pictures/{name}") for name in PICTURES],
        "Comparison": [
            *(media(f"comparison/{name}") for name in COMPARISON),
            wr.WeavePanelSummaryTable(table_name="comparison/pairs"),
        ],
    }


def as_json(built: ws.Workspace) -> str:
    """Returns the JSON that the library sends, for which it has no public function."""
    return str(built._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2)) + "\n"
