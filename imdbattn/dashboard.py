"""Builds a W&B workspace for the runs of a project: `python -m imdbattn.dashboard entity=<user or
team>`.

Its panels show what imdbattn.tracking and Lightning log.
"""

from typing import Any

from imdbattn.io.files import expanded, write_atomically
from imdbattn.launch.command import command

CURVES = ("val/accuracy", "val/loss", "train/accuracy", "train/loss")
PICTURES = ("learning_curves", "positions", "attention", "page")


def workspace(settings: Any) -> Any:
    """The workspace, not yet saved. Needs the extra `dashboard`."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    grouped: dict[str, Any] = {
        "groupby": wr.Config(settings.by),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
        "max_runs_to_show": 500,
    }

    def bars(metric: str, title: str, unit: str) -> Any:
        return wr.BarPlot(
            title=title, metrics=[metric], title_x=unit, max_bars_to_show=50, **grouped
        )

    def accuracy_over(metric: str, title: str) -> Any:
        x, y = wr.SummaryMetric(metric), wr.SummaryMetric("best/val_accuracy")
        return wr.ScatterPlot(title=f"Validation accuracy over {title}", x=x, y=y, log_x=True)

    sections = {
        "Accuracy": [
            bars(
                "best/val_accuracy",
                "Validation accuracy, mean and standard deviation",
                "share of reviews",
            ),
            bars("test/accuracy", "Test accuracy, mean and standard deviation", "share of reviews"),
            wr.WeavePanelSummaryTable(table_name="comparison/rungs"),
        ],
        "Learning curves": [
            wr.LinePlot(
                title=metric,
                x="epoch",
                y=[metric],
                title_x="epoch",
                smoothing_type="none",
                **grouped,
            )
            for metric in CURVES
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
        "Pictures": [
            wr.MediaBrowser(title=name, media_keys=[f"pictures/{name}"]) for name in PICTURES
        ],
        "Comparison": [
            wr.MediaBrowser(title="comparison", media_keys=["comparison/page"]),
            wr.WeavePanelSummaryTable(table_name="comparison/pairs"),
        ],
    }
    group = settings.group
    return ws.Workspace(
        entity=settings.entity or "",
        project=settings.project,
        name=f"The ladder: {group}" if group else "The ladder",
        sections=[
            ws.Section(name=name, panels=panels, is_open=True) for name, panels in sections.items()
        ],
        settings=ws.WorkspaceSettings(max_runs=100),
        runset_settings=ws.RunsetSettings(
            # the library's filters cannot quote
            filters=f"Metric('Group') == {group!r}" if group else "",
            pinned_columns=["config:rung.value", "config:seed.value", "summary:best/val_accuracy"],
        ),
    )


@command("dashboard", "out", "group", schema="tracking.settings.Dashboard")
def main(settings: Any) -> None:
    """Prints the address of the workspace, or with dry_run=true the path of its JSON."""
    built = workspace(settings)
    if settings.dry_run:  # the library has no public function for the JSON that it sends
        json = built._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2)
        write_atomically(expanded(settings.out), json + "\n")
        print(f"dashboard: {settings.out}")
    else:
        built.save()
        print(f"dashboard: {built.url}")


if __name__ == "__main__":
    main()
