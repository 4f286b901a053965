"""Draws what a finished run learned: `python -m imdbattn.picture picture=attention run=<run folder> row=17`."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.settings.cli import command, plain_dict, take_argument, without_gc
from imdbattn.settings.keys import SPLIT_FILES


def picture(cfg: DictConfig, text: str | None) -> None:
    """Prints the path of each file it writes. Raises UserError for wrong input."""
    for path in draw(plain_dict(cfg) | ({} if text is None else {"text": text})):
        print(path)


def draw(settings: dict[str, Any]) -> list[Path]:
    """Draws the picture that conf/picture.yaml's settings ask for, and returns the files. Raises UserError."""
    from imdbattn.settings.schema import Picture, validate_as  # pydantic: `--help` does not wait for it

    settings = validate_as(Picture, settings).model_dump()
    if settings["picture"] == "scaling":
        out = Path(settings["out"] or "pictures").expanduser()
        with without_gc():
            from imdbattn.explain.draw import draw_scaling

        return [draw_scaling(out)]
    text = None if settings["picture"] == "positions" else chosen_text(settings)
    with without_gc():
        from imdbattn.explain import alignment
        from imdbattn.explain.draw import draw_alignment, draw_attention, draw_positions
        from imdbattn.explain.show import digest
        from imdbattn.runs.score import Writer, load_reader

    reader, folder = load_reader(settings)
    if isinstance(reader, Writer) and text is None:
        raise UserError("picture=positions is for reviews: an encoder-decoder has no positions")
    out = Path(settings["out"] or folder / "pictures").expanduser()
    if isinstance(reader, Writer):
        (decoded,) = reader.write([str(text)])
        return draw_alignment(decoded, out, f"attention-{alignment.digest([decoded])}")
    if text is None:
        if not (paths := draw_positions(reader.module.net, reader.settings, out)):
            name = reader.settings["model"]["name"]
            raise UserError(f"model={name} has no positions; residual_pe, residual_learned and tuned have")
        return paths
    return draw_attention(found := reader.explain(text), out, f"attention-{digest([found])}", settings["words"])


def chosen_text(settings: dict[str, Any]) -> str:
    """The review to look at. Raises UserError when there is none, or two."""
    text, row = settings["text"], settings["row"]
    if (text is None) == (row is None):
        raise UserError("picture=attention needs text=... or row=<row of a test review>, one of them")
    return text_of_row(settings, row) if text is None else str(text)


def text_of_row(settings: dict[str, Any], row: int) -> str:
    """The run's test review with that row number in its source; a validation review where the run has no test.

    Raises UserError when there is no such review.
    """
    import pyarrow.parquet as pq

    from imdbattn.run_folder import open_run

    folder = open_run(run := settings["run"], settings["trust"])[1].parents[1]
    files = [folder / reviews for _, reviews in SPLIT_FILES.values()]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise UserError(f"run={run} has no {files[0].name}: give text=...")
    try:
        table = pq.read_table(file, columns=["row", "text"]).to_pydict()
    except (OSError, ValueError) as error:  # pyarrow's, too
        raise UserError(f"{file} cannot be read ({' '.join(str(error).split())[:200]}): give text=...") from error
    texts = dict(zip(table["row"], table["text"], strict=True))
    if row not in texts:
        raise UserError(f"row={row} is none of the {len(texts)} rows of {file}, such as {min(texts)} or {max(texts)}")
    return texts[row]


def main() -> None:
    text = take_argument("text")
    command("picture", "run", "out", "data.glove.path", "data.cache_dir")(lambda cfg: picture(cfg, text))()


if __name__ == "__main__":
    main()
