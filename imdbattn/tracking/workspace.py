"""A W&B workspace and a W&B report: their panels show what imdbattn.tracking and Lightning log.

Needs the extra `dashboard`. Nothing is sent before they are saved.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

CURVES = ("val/accuracy", "val/loss", "train/accuracy", "train/loss")
TRAINING = ("train/gradient_norm", "train/gradient_norm_max")
PICTURES = ("learning_curves", "positions", "attention", "attention_entropy", "page")
COMPARISON = ("page", "accuracies", "entropy")
VARIED = ("rung", "model.net.layers", "data.word_dropout", "optim.lr", "attention_entropy")
TITLE = 128  # characters of a report's title, W&B's limit


def build_workspace(entity: str, project: str, group: str | None, by: str) -> ws.Workspace:
    """The workspace of a project. group: a sweep, to show its runs only. by: the setting by which
    runs are grouped.
    """
    grouped = grouping(by)
    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"The ladder: {group}" if group else "The ladder",
        sections=[
            ws.Section(name=name, panels=panels, is_open=True)
            for name, panels in sections(grouped).items()
        ],
        settings=ws.WorkspaceSettings(max_runs=100),
        runset_settings=ws.RunsetSettings(
            filters=in_group(group),
            pinned_columns=["config:rung.value", "config:seed.value", "summary:best/val_accuracy"],
        ),
    )


def grouping(by: str) -> dict[str, Any]:
    """Arguments of a panel that shows mean and standard deviation of each group of runs."""
    return {
        "groupby": wr.Config(by),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
        "max_runs_to_show": 500,
    }


def in_group(group: str | None) -> str:
    """A filter of runs; the library's own filters cannot quote."""
    return f"Metric('Group') == {group!r}" if group else ""


def sections(grouped: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The panels of each section."""
    best = wr.SummaryMetric("best/val_accuracy")
    columns = [wr.ParallelCoordinatesPlotColumn(wr.Config(name)) for name in VARIED]
    columns.append(wr.ParallelCoordinatesPlotColumn(best))
    return {
        "Accuracy": [
            bars(
                "best/val_accuracy",
                "Validation accuracy, mean and standard deviation",
                "share of reviews",
                grouped,
            ),
            bars(
                "test/accuracy",
                "Test accuracy, mean and standard deviation",
                "share of reviews",
                grouped,
            ),
            wr.WeavePanelSummaryTable(table_name="comparison/rungs"),
        ],
        "Sweep": [
            wr.ParallelCoordinatesPlot(title="Settings and validation accuracy", columns=columns),
            wr.ParameterImportancePlot(with_respect_to="best/val_accuracy"),
            wr.RunComparer(diff_only=True),
        ],
        "Learning curves": [curve(metric, grouped) for metric in CURVES],
        "Training": [
            # its name has that of the optimizer, and of each group of parameters
            curves("Learning rate", "lr-.*", grouped),
            *(curve(metric, grouped) for metric in TRAINING),
        ],
        "Attention over time": [
            curves(f"Entropy (share of equal weights), {kind}", f"attention_{name}/.*", grouped)
            for name, kind in (
                ("share", "all reviews"),
                ("share_right", "right reviews"),
                ("share_wrong", "wrong reviews"),
            )
        ],
        "Time": [
            accuracy_over("train_seconds", "training time (s)"),
            accuracy_over("parameters", "trained parameters"),
            bars("epoch_seconds", "Seconds per epoch", "s", grouped),
            bars("tokens_per_s", "Training words per second", "1/s", grouped),
        ],
        "Predictions": [
            wr.CustomChart(
                query={"summaryTable": {"tableKey": "test/confusion_matrix_table"}},
                chart_name="wandb/confusion_matrix/v1",
                chart_fields={name: name for name in ("Actual", "Predicted", "nPredictions")},
                chart_strings={"title": "Confusion, test"},
            ),
            wr.WeavePanelSummaryTable(table_name="test/predictions"),
            wr.WeavePanelSummaryTable(table_name="predictions/over_time"),
        ],
        "Pictures": [
            wr.MediaBrowser(title=name, media_keys=[f"pictures/{name}"]) for name in PICTURES
        ],
        "Comparison": [
            *(wr.MediaBrowser(title=n, media_keys=[f"comparison/{n}"]) for n in COMPARISON),
            wr.WeavePanelSummaryTable(table_name="comparison/pairs"),
        ],
    }


def bars(metric: str, title: str, unit: str, grouped: Mapping[str, Any]) -> wr.BarPlot:
    return wr.BarPlot(title=title, metrics=[metric], title_x=unit, max_bars_to_show=50, **grouped)


def curve(metric: str, grouped: Mapping[str, Any]) -> wr.LinePlot:
    return wr.LinePlot(
        title=metric, x="epoch", y=[metric], title_x="epoch", smoothing_type="none", **grouped
    )


def curves(title: str, names: str, grouped: Mapping[str, Any]) -> wr.LinePlot:
    """All curves with these names, a regular expression."""
    return wr.LinePlot(
        title=title,
        x="epoch",
        metric_regex=names,
        title_x="epoch",
        smoothing_type="none",
        **grouped,
    )


def accuracy_over(metric: str, title: str) -> wr.ScatterPlot:
    x, y = wr.SummaryMetric(metric), wr.SummaryMetric("best/val_accuracy")
    return wr.ScatterPlot(title=f"Validation accuracy over {title}", x=x, y=y, log_x=True)


# --- a report of a comparison ---------------------------------------------------------------------


def build_report(
    entity: str, project: str, group: str | None, by: str, comparisons: Iterable[Mapping[str, Any]]
) -> wr.Report:
    """The report of comparisons (of report.comparison): verdicts and tables as text, and figures
    of the runs in the project.
    """
    from imdbattn.report.comparison_page import report_of  # not for a workspace

    reports = [report_of(dict(one)) for one in comparisons]
    blocks: list[Any] = []
    for one in reports:
        blocks += [wr.H1(plain(one.title)), wr.P(plain(one.about)), wr.P(plain(one.lead))]
        blocks.append(wr.UnorderedList(list(map(plain, one.points)) or ["one model"]))
        for section in one.sections:
            if section.table:
                blocks += [wr.H2(section.title), wr.P(plain(section.text))]
                blocks.append(wr.MarkdownBlock(markdown_table(section.table)))
        blocks.append(wr.UnorderedList(list(map(plain, one.notes))))
    grouped = grouping(by)
    shown = {name: panels for name, panels in sections(grouped).items() if name in FIGURES}
    runs = wr.Runset(entity=entity, project=project, filters=in_group(group))
    for name, panels in shown.items():
        blocks += [wr.H2(name), wr.PanelGrid(runsets=[runs], panels=panels)]
    title = plain(reports[0].title)
    title = title if len(title) <= TITLE else f"{title[: TITLE - 1]}…"
    return wr.Report(project=project, entity=entity, title=title, blocks=blocks, width="fluid")


FIGURES = ("Accuracy", "Learning curves", "Attention over time", "Comparison")


def plain(text: str) -> str:
    return " ".join(text.split())


def markdown_table(rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown, in which | and < have no effect: cells may be parts of reviews."""
    escape = str.maketrans({"|": r"\|", "<": "&lt;", "\n": " "})
    lines = [f"| {' | '.join(cell.translate(escape) for cell in row)} |" for row in rows]
    columns = lines[0].count(" | ") + 1
    return "\n".join([lines[0], f"|{' --- |' * columns}", *lines[1:]])


# --- JSON -----------------------------------------------------------------------------------------


def as_json(built: Any) -> str:
    """The JSON that the library sends, for which it has no public function."""
    return str(built._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2)) + "\n"
