"""Scores a finished run again: `python -m imdbattn.evaluate run=<run folder>`."""

from typing import TYPE_CHECKING

from imdbattn.errors import visible
from imdbattn.launch.command import command
from imdbattn.settings.keys import NestedDict

if TYPE_CHECKING:
    from imdbattn.settings.command_settings import EvaluateSettings


@command("evaluate")
def main(settings: "EvaluateSettings") -> None:
    """Prints the accuracy, and writes it into evaluations/ of the run folder."""
    from imdbattn.runs.evaluate import evaluate_run

    metrics = evaluate_run(settings)
    print(visible("{model}, seed {seed}, on {test_set}, split {split}".format_map(metrics)))
    bleu = f", BLEU {metrics['bleu']:.1f}" if "bleu" in metrics else ""
    count = f"{metrics['count']} {metrics['items']}"
    print(
        f"accuracy {100 * metrics['accuracy']:.2f} % of {count}, loss {metrics['loss']:.4f}{bleu}"
    )
    if "macro_f1" in metrics:
        print_classes(metrics)


def print_classes(metrics: NestedDict) -> None:
    """Prints the share of the largest class and the macro F1; for up to 10 classes also a table
    with recall, F1 and the predictions of each class.
    """
    largest = 100 * metrics["largest_class"]
    print(f"largest class {largest:.2f} %, macro F1 {100 * metrics['macro_f1']:.2f} %")
    if len(names := [visible(name) for name in metrics["labels"]]) > 10:
        return
    import pandas as pd

    table = pd.DataFrame(metrics["confusion"], names, [f"as {name}" for name in names])
    table.insert(0, "reviews", table.sum(axis=1))
    table.insert(1, "recall %", 100 * pd.Series(metrics["recall"], names, float))
    table.insert(2, "F1 %", 100 * pd.Series(metrics["f1"], names, float))
    print(table.to_string(na_rep="", float_format="{:.2f}".format))


if __name__ == "__main__":
    main()
