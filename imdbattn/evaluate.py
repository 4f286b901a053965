"""Scores a finished run again: `python -m imdbattn.evaluate run=<run folder>`."""

from omegaconf import DictConfig

from imdbattn.settings.cli import command, plain_dict, without_gc
from imdbattn.settings.safety import visible


@command("evaluate", "run", "data.path", "data.glove.path", "data.cache_dir")
def main(cfg: DictConfig) -> None:
    """Prints the accuracy and writes evaluations/<split>-<fingerprint>.json and .parquet into the run folder."""
    from imdbattn.settings.schema import Evaluate, validate_as  # pydantic: `--help` does not wait for it

    settings = validate_as(Evaluate, plain_dict(cfg)).model_dump()
    with without_gc():
        from imdbattn.runs.score import score_run

    found = score_run(settings)
    print(visible(f"{found['model']}, seed {found['seed']}, on {found['test_set']}, split {found['split']}"))
    bleu = f", BLEU {found['bleu']:.1f}" if "bleu" in found else ""
    items = found.get("items", "reviews")
    print(f"accuracy {100 * found['accuracy']:.2f} % of {found['reviews']} {items}, loss {found['loss']:.4f}{bleu}")


if __name__ == "__main__":
    main()
