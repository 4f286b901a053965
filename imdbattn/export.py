"""Exports a finished run's model: `python -m imdbattn.export run=<run folder> out=my_model`."""

from typing import TYPE_CHECKING

from imdbattn.launch.command import command

if TYPE_CHECKING:
    from imdbattn.settings.command_settings import ExportSettings


@command("export")
def main(settings: "ExportSettings") -> None:
    """Prints what was written."""
    from imdbattn.exports.folder import write_export
    from imdbattn.runs.apply import load_predictor

    predictor, _ = load_predictor(settings)
    facts = write_export(predictor, settings)
    if facts:
        print("vectors of {words:,} of {of_words:,} words, {precision}".format_map(facts))
    print(f"exported: {settings.out}")


if __name__ == "__main__":
    main()
