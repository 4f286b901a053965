"""Builds a W&B workspace for the ladder's runs: `python -m imdbattn.dashboard entity=<user or team>`."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.files import write_atomically
from imdbattn.settings.cli import command, plain_dict

CURVES = ("val/accuracy", "val/loss", "train/accuracy", "train/loss")
PICTURES = ("learning_curves", "positions", "attention", "page")  # as fit() draws them; `page` shades the review


def workspace(settings: dict[str, Any]) -> Any:
    """The workspace, not saved yet. Raises UserError where the extra `dashboard` is not installed.

    Its panels show what training.fit and training.publish log, under the names given there.
    """
    try:
        import wandb_workspaces.reports.v2 as wr
        import wandb_workspaces.workspaces as ws
    except ModuleNotFoundError as error:
        raise UserError("the dashboard needs a package: pip install 'imdbattn[dashboard]'") from error
    over_runs: dict[str, Any] = {
        "groupby": wr.Config(str(settings["by"])),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
        "max_runs_to_show": 500,
    }

    def bars(metric: str, title: str, unit: str) -> Any:
        return wr.BarPlot(title=title, metrics=[metric], title_x=unit, max_bars_to_show=50, **over_runs)

    def curve(metric: str) -> Any:
        return wr.LinePlot(title=metric, x="epoch", y=[metric], title_x="epoch", smoothing_type="none", **over_runs)

    def against(metric: str, title: str) -> Any:
        return wr.ScatterPlot(
            title=title, x=wr.SummaryMetric(metric), y=wr.SummaryMetric("best/val_accuracy"), log_x=True
        )

    sections = {
        "Accuracy": [
            bars("best/val_accuracy", "Validation accuracy, mean and standard deviation", "share of reviews"),
            bars("test/accuracy", "Test accuracy, mean and standard deviation", "share of reviews"),
            wr.WeavePanelSummaryTable(table_name="comparison/rungs"),
        ],
        "Learning curves": [curve(metric) for metric in CURVES],
        "Time": [
            against("train_seconds", "Validation accuracy against training time (s)"),
            against("parameters", "Validation accuracy against trained parameters"),
            bars("epoch_seconds", "Seconds an epoch", "s"),
            bars("tokens_per_s", "Words a second, in training", "1/s"),
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
        "Pictures": [wr.MediaBrowser(title=name, media_keys=[f"pictures/{name}"]) for name in PICTURES],
        "Comparison": [
            wr.MediaBrowser(title="comparison", media_keys=["comparison/page"]),
            wr.WeavePanelSummaryTable(table_name="comparison/pairs"),
        ],
    }
    group = settings["group"]
    return ws.Workspace(
        entity=str(settings["entity"] or ""),
        project=str(settings["project"]),
        name="The ladder" if group is None else f"The ladder: {group}",
        sections=[ws.Section(name=name, panels=panels, is_open=True) for name, panels in sections.items()],
        settings=ws.WorkspaceSettings(max_runs=100),
        runset_settings=ws.RunsetSettings(
            filters="" if group is None else f"Metric('Group') == {str(group)!r}",  # its own way cannot quote
            pinned_columns=["config:rung.value", "config:seed.value", "summary:best/val_accuracy"],
        ),
    )


def save(found: Any, timeout: float) -> str:
    """Saves a workspace in W&B and returns its address. Raises UserError: no key, no server, or what W&B says."""
    from imdbattn.data.reviews import http_status
    from imdbattn.tracking.wandb_run import has_wandb_key, wandb_server

    way_out = "or write the JSON with dry_run=true"
    server, host = wandb_server()
    if not has_wandb_key():
        raise UserError(f"no W&B key is configured for {host}: run `wandb login`, {way_out}")
    if http_status(server, timeout) is None:
        raise UserError(f"W&B: {host} does not answer within {timeout} s: try again, {way_out}")
    try:
        found.save()
    except Exception as error:
        raise UserError(f"W&B did not take the dashboard: {' '.join(str(error).split())}") from error
    return str(found.url)


@command("dashboard", "out", "group")
def main(cfg: DictConfig) -> None:
    """Prints where the workspace is: its address, or with dry_run=true its file."""
    from imdbattn.settings.schema import Dashboard, validate_as  # pydantic: `--help` does not wait for it

    settings = validate_as(Dashboard, plain_dict(cfg)).model_dump()
    found = workspace(settings)
    if settings["dry_run"]:
        path = Path(settings["out"]).expanduser()
        # The only way to what would be sent: the library has no public one.
        write_atomically(path, found._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n")
    print(f"dashboard: {path if settings['dry_run'] else save(found, settings['timeout'])}")


if __name__ == "__main__":
    main()
