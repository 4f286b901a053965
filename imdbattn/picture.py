"""Draws figures of a finished run: `python -m imdbattn.picture picture=attention run=<run folder> row=17`."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from imdbattn.errors import UserError, in_line
from imdbattn.files import expanded
from imdbattn.run_folder import SPLIT_FILES, open_run
from imdbattn.settings.cli import command, plain_dict, take_argument, validated, without_gc


def picture(cfg: DictConfig, text: str | None) -> None:
    """Prints the path of each file that is written."""
    for path in draw(plain_dict(cfg) | ({} if text is None else {"text": text})):
        print(path)


def draw(settings: dict[str, Any]) -> list[Path]:
    """settings: those of conf/picture.yaml. Returns the paths of the files that are written. Raises UserError."""
    cfg = validated("Picture", settings)
    text = text_of_row(cfg) if cfg.picture == "attention" and cfg.text is None else str(cfg.text)
    with without_gc():
        from imdbattn.explain.figures import draw_positions, write_png
        from imdbattn.explain.scaling import scaling_figure
        from imdbattn.explain.show import digest, write_attention
        from imdbattn.runs.score import load_predictor

    if cfg.picture == "scaling":
        return [write_png(scaling_figure(), expanded(cfg.out or "pictures") / "scaling.png")]
    predictor, folder = load_predictor(cfg)
    out = expanded(cfg.out or folder / "pictures")
    if cfg.picture == "attention":
        reading = predictor.explain(text)
        return write_attention(reading, out, f"attention-{digest([reading])}", cfg.words)
    net, model = predictor.module.net, predictor.cfg.model.name
    paths = draw_positions(net, predictor.cfg.data.max_tokens or 512, out) if hasattr(net, "positions") else []
    if not paths:
        raise UserError(f"model={model} has no positions to draw: use a run of residual_pe, residual_learned or tuned")
    return paths


def text_of_row(cfg: Any) -> str:
    """The text of the run's test split with row number `cfg.row` in its source; of validation if the run has no test.

    Raises UserError if there is none.
    """
    import pyarrow.parquet as pq

    folder = open_run(cfg.run, cfg.trust)[1].parents[1]
    files = [folder / reviews for _, reviews in SPLIT_FILES.values()]
    file = next(filter(Path.is_file, files), files[0])
    try:
        table = pq.read_table(file, columns=["row", "text"]).to_pydict()
    except (OSError, ValueError) as error:  # pyarrow's are subclasses
        raise UserError(f"{file} cannot be read ({in_line(error)}): give text=...") from error
    texts = dict(zip(table["row"], table["text"], strict=True))
    if cfg.row not in texts:
        raise UserError(
            f"row={cfg.row} is not among the {len(texts)} rows of {file}, such as {min(texts)} or {max(texts)}"
        )
    return texts[cfg.row]


def main() -> None:
    text = take_argument("text")
    command("picture", "run", "out", "data.glove.path", "data.cache_dir")(lambda cfg: picture(cfg, text))()


if __name__ == "__main__":
    main()
