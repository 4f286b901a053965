"""Scores a finished run again: `python -m imdbattn.evaluate run=<run folder>`."""

from omegaconf import DictConfig

from imdbattn.settings import command, plain, quote_arguments


@command("evaluate")
def evaluate(cfg: DictConfig) -> None:
    """Prints the accuracy and writes evaluations/<split>-<fingerprint>.json and .parquet into the run folder."""
    settings = plain(cfg)
    from imdbattn.training.fit import score_run

    found = score_run(settings)
    print(f"{found['model']}, seed {found['seed']}, on {found['test_set']}, split {found['split']}")
    print(f"accuracy {100 * found['accuracy']:.2f} % of {found['reviews']} reviews, loss {found['loss']:.4f}")


def main() -> None:
    quote_arguments("run", "data.path")
    evaluate()


if __name__ == "__main__":
    main()
