"""Scores a finished run again: `python -m imdbattn.evaluate run=<run folder>`."""

from collections.abc import Mapping
from typing import Any

from imdbattn.settings.cli import COLUMNS, command, without_gc
from imdbattn.settings.safety import visible


@command("evaluate", "run", "data.path", "data.glove.path", "data.cache_dir", *COLUMNS, schema="Evaluate")
def main(settings: Any) -> None:
    """Prints the accuracy, and writes evaluations/<split>-<fingerprint>.json and .parquet into the run folder."""

    with without_gc():
        from imdbattn.runs.score import score_run

    metrics = score_run(settings)
    print(visible("{model}, seed {seed}, on {test_set}, split {split}".format_map(metrics)))
    bleu = f", BLEU {metrics['bleu']:.1f}" if "bleu" in metrics else ""
    count = f"{metrics['reviews']} {metrics.get('items', 'reviews')}"
    print(f"accuracy {100 * metrics['accuracy']:.2f} % of {count}, loss {metrics['loss']:.4f}{bleu}")
    if "macro_f1" in metrics:
        print_classes(metrics)


def print_classes(metrics: Mapping[str, Any]) -> None:
    """Prints the macro F1; for up to 10 classes also a table with recall, F1 and the predictions of each class."""
    print(f"macro F1 {100 * metrics['macro_f1']:.2f} %")
    if len(names := [visible(name) for name in metrics["labels"]]) > 10:
        return
    from rich.table import Table

    from imdbattn.pages import terminal

    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("label", no_wrap=True)
    for head in ("reviews", "recall %", "F1 %", *(f"as {name}" for name in names)):
        table.add_column(head, justify="right", overflow="fold")
    for name, row, *shares in zip(names, *(metrics[key] for key in ("confusion", "recall", "f1")), strict=True):
        percents = ("" if share is None else f"{100 * share:.2f}" for share in shares)
        table.add_row(name, f"{sum(row):,}", *percents, *(f"{count:,}" for count in row))
    terminal().print(table)


if __name__ == "__main__":
    main()
