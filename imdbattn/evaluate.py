"""Scores a finished run again: `python -m imdbattn.evaluate run=<run folder>`."""

from omegaconf import DictConfig

from imdbattn.settings.cli import command, plain_dict, without_gc
from imdbattn.settings.safety import visible


@command("evaluate", "run", "data.path", "data.glove.path", "data.cache_dir")
def main(cfg: DictConfig) -> None:
    """Prints the accuracy, and writes evaluations/<split>-<fingerprint>.json and .parquet into the run folder."""
    from imdbattn.settings.schema import Evaluate, validate_as  # pydantic, for which `--help` does not wait

    settings = validate_as(Evaluate, plain_dict(cfg))
    with without_gc():
        from imdbattn.runs.score import score_run

    metrics = score_run(settings)
    print(visible("{model}, seed {seed}, on {test_set}, split {split}".format_map(metrics)))
    bleu = f", BLEU {metrics['bleu']:.1f}" if "bleu" in metrics else ""
    count = f"{metrics['reviews']} {metrics.get('items', 'reviews')}"
    print(f"accuracy {100 * metrics['accuracy']:.2f} % of {count}, loss {metrics['loss']:.4f}{bleu}")


if __name__ == "__main__":
    main()
