"""A W&B workspace and a W&B report: their panels show what imdbattn.tracking and Lightning log.

Needs the extra `dashboard`. Nothing is sent before they are saved.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, TypedDict

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces.reports.v2.interface import BlockTypes, PanelTypes

from imdbattn.errors import in_line
from imdbattn.report.content import ComparedSet

CURVE_METRICS = ("val/accuracy", "val/loss", "train/accuracy", "train/loss")
GRADIENT_METRICS = ("train/gradient_norm", "train/gradient_norm_max")
PICTURES = ("learning_curves", "positions", "attention", "attention_entropy", "page")
COMPARISON = ("page", "accuracies", "entropy")
VARIED = ("rung", "model.net.layers", "data.word_dropout", "optim.lr", "attention_entropy")
TITLE = 128  # characters of a report's title, W&B's limit


def build_workspace(entity: str, project: str, group: str | None, by: str) -> ws.Workspace:
    """Returns the workspace of a project.

    group: a sweep, to show its runs only. by: the setting by which runs are grouped.
    """
    sections = []
    for name, panels in panels_by_section(grouping(by)).items():
        sections.append(ws.Section(name=name, panels=panels, is_open=True))
    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"The ladder: {group}" if group else "The ladder",
        sections=sections,
        settings=ws.WorkspaceSettings(max_runs=100),
        runset_settings=ws.RunsetSettings(
            filters=in_group(group),
            pinned_columns=["config:rung.value", "config:seed.value", "summary:best/val_accuracy"],
        ),
    )


class Grouping(TypedDict):
    """Arguments of a panel that shows mean and standard deviation of each group of runs."""

    groupby: wr.Config
    groupby_aggfunc: Literal["mean"]
    groupby_rangefunc: Literal["stddev"]
    max_runs_to_show: int


def grouping(by: str) -> Grouping:
    """Returns the arguments of a panel that groups runs by a setting."""
    return {
        "groupby": wr.Config(by),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
        "max_runs_to_show": 500,
    }


def in_group(group: str | None) -> str:
    """Returns a filter of runs; the library's own filters cannot quote."""
    return f"Metric('Group') == {group!r}" if group else ""


def panels_by_section(grouped: Grouping) -> dict[str, list[PanelTypes]]:
    """Returns the panels of each section."""
    return {
        "Accuracy": accuracy_panels(grouped),
        "Sweep": sweep_panels(),
        "Learning curves": [curve(metric, grouped) for metric in CURVE_METRICS],
        "Training": [
            # its name has that of the optimizer, and of each group of parameters
            curves_named("Learning rate", "lr-.*", grouped),
            *(curve(metric, grouped) for metric in GRADIENT_METRICS),
        ],
        "Attention over time": attention_panels(grouped),
        "Time": [
            accuracy_over("train_seconds", "training time (s)"),
            accuracy_over("parameters", "trained parameters"),
            bars("epoch_seconds", "Seconds per epoch", "s", grouped),
            bars("tokens_per_s", "Training words per second", "1/s", grouped),
        ],
        "Predictions": prediction_panels(),
        "Pictures": [
            wr.MediaBrowser(title=name, media_keys=[f"pictures/{name}"]) for name in PICTURES
        ],
        "Comparison": [
            *(
                wr.MediaBrowser(title=name, media_keys=[f"comparison/{name}"])
                for name in COMPARISON
            ),
            wr.WeavePanelSummaryTable(table_name="comparison/pairs"),
        ],
    }


def accuracy_panels(grouped: Grouping) -> list[PanelTypes]:
    unit = "share of reviews"
    panels: list[PanelTypes] = []
    for metric, split in (("best/val_accuracy", "Validation"), ("test/accuracy", "Test")):
        panels.append(bars(metric, f"{split} accuracy, mean and standard deviation", unit, grouped))
    panels.append(wr.WeavePanelSummaryTable(table_name="comparison/rungs"))
    return panels


def sweep_panels() -> list[PanelTypes]:
    best = wr.SummaryMetric("best/val_accuracy")
    columns = [wr.ParallelCoordinatesPlotColumn(wr.Config(name)) for name in VARIED]
    columns.append(wr.ParallelCoordinatesPlotColumn(best))
    return [
        wr.ParallelCoordinatesPlot(title="Settings and validation accuracy", columns=columns),
        wr.ParameterImportancePlot(with_respect_to="best/val_accuracy"),
        wr.RunComparer(diff_only=True),
    ]


def attention_panels(grouped: Grouping) -> list[PanelTypes]:
    kinds = {"share": "all reviews", "share_right": "right reviews", "share_wrong": "wrong reviews"}
    panels: list[PanelTypes] = []
    for name, reviews in kinds.items():
        title = f"Entropy (share of equal weights), {reviews}"
        panels.append(curves_named(title, f"attention_{name}/.*", grouped))
    return panels


def prediction_panels() -> list[PanelTypes]:
    confusion = wr.CustomChart(
        query={"summaryTable": {"tableKey": "test/confusion_matrix_table"}},
        chart_name="wandb/confusion_matrix/v1",
        chart_fields={name: name for name in ("Actual", "Predicted", "nPredictions")},
        chart_strings={"title": "Confusion, test"},
    )
    return [
        confusion,
        wr.WeavePanelSummaryTable(table_name="test/predictions"),
        wr.WeavePanelSummaryTable(table_name="predictions/over_time"),
    ]


def bars(metric: str, title: str, unit: str, grouped: Grouping) -> wr.BarPlot:
    return wr.BarPlot(title=title, metrics=[metric], title_x=unit, max_bars_to_show=50, **grouped)


def curve(metric: str, grouped: Grouping) -> wr.LinePlot:
    return wr.LinePlot(
        title=metric, x="epoch", y=[metric], title_x="epoch", smoothing_type="none", **grouped
    )


def curves_named(title: str, names: str, grouped: Grouping) -> wr.LinePlot:
    """Returns a plot of all curves with these names, a regular expression."""
    return wr.LinePlot(
        title=title,
        x="epoch",
        metric_regex=names,
        title_x="epoch",
        smoothing_type="none",
        **grouped,
    )


def accuracy_over(metric: str, title: str) -> wr.ScatterPlot:
    x = wr.SummaryMetric(metric)
    y = wr.SummaryMetric("best/val_accuracy")
    return wr.ScatterPlot(title=f"Validation accuracy over {title}", x=x, y=y, log_x=True)


# --- a report of a comparison ---------------------------------------------------------------------


def build_report(
    entity: str, project: str, group: str | None, by: str, comparisons: Iterable[ComparedSet]
) -> wr.Report:
    """Returns the report of comparisons (of report.comparison): verdicts and tables as text, and
    figures of the runs in the project.
    """
    from imdbattn.report.comparison_page import report_of  # not for a workspace
    from imdbattn.report.pages import markdown

    reports = list(map(report_of, comparisons))
    blocks: list[BlockTypes] = []
    for report in reports:
        # W&B shows figures of the runs in the project; folders of this machine are not sent
        sections = [replace(each, pictures=()) for each in report.sections if each.table]
        sent = replace(report, sections=sections, skipped=())
        blocks.append(wr.MarkdownBlock(markdown(sent)))
    grouped = grouping(by)
    shown = {name: panels for name, panels in panels_by_section(grouped).items() if name in FIGURES}
    runs = wr.Runset(entity=entity, project=project, filters=in_group(group))
    for name, panels in shown.items():
        blocks += [wr.H2(name), wr.PanelGrid(runsets=[runs], panels=panels)]
    title = in_line(reports[0].title, TITLE)
    return wr.Report(project=project, entity=entity, title=title, blocks=blocks, width="fluid")


FIGURES = ("Accuracy", "Learning curves", "Attention over time", "Comparison")


# --- JSON -----------------------------------------------------------------------------------------


def as_json(built: wr.Report | ws.Workspace) -> str:
    """Returns the JSON that the library sends, for which it has no public function."""
    return str(built._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2)) + "\n"
