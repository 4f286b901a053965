"""Exports a finished run's model: `python -m imdbattn.export run=<run folder> out=my_model`."""

from omegaconf import DictConfig

from imdbattn.launch.command import command
from imdbattn.launch.hydra_config import typed_settings


@command("export")
def main(cfg: DictConfig) -> None:
    """Prints what was written, and how many labels it changes."""
    from imdbattn.settings.command_settings import ExportSettings

    options = typed_settings(cfg, ExportSettings)
    from imdbattn.exports.folder import write_export
    from imdbattn.runs.apply import load_predictor

    predictor, _ = load_predictor(options)
    facts = write_export(predictor, options)
    if facts:
        print("vectors of {words:,} of {of_words:,} words, {precision}".format_map(facts))
        line = "{changed_labels} of {reviews} {split} reviews change their label"
        if facts["changed_labels"]:
            line += ", because other words are omitted; vectors=all keeps them"
        print(line.format_map(facts))
    print(f"exported: {options.out}")


if __name__ == "__main__":
    main()
