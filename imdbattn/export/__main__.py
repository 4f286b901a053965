"""Exports a finished run's model: `python -m imdbattn.export run=<run folder> out=my_model`."""

from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.settings.cli import command, plain_dict, without_gc


@command("export", "run", "out", "data.glove.path", "data.cache_dir")
def main(cfg: DictConfig) -> None:
    """Prints what was written, and how many labels it changes."""
    from imdbattn.settings.schema import Export, validate_as  # pydantic, for which `--help` does not wait

    settings = validate_as(Export, plain_dict(cfg))
    if settings.out is None:
        raise UserError("out=<folder to write> is needed, such as out=my_model")
    with without_gc():
        from imdbattn.export.folder import write_export
        from imdbattn.runs.score import load_predictor

    predictor, folder = load_predictor(settings)
    options = settings.model_dump(include={"vectors", "precision", "graph", "onnx"})
    facts = write_export(predictor, settings.out, folder, **options)
    if facts:
        print("vectors of {words:,} of {of_words:,} words, {precision}".format_map(facts))
        print("{changed_labels} of {reviews} {split} reviews change their label".format_map(facts))
    print(f"exported: {settings.out}")


if __name__ == "__main__":
    main()
