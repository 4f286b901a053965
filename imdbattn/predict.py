"""Applies a finished run to new texts: `python -m imdbattn.predict run=<run folder> text="..."`."""

import sys

from omegaconf import DictConfig
from tqdm import tqdm

from imdbattn.errors import visible
from imdbattn.io.files import write_atomically
from imdbattn.launch.command import run_command
from imdbattn.launch.hydra_config import plain_settings, separate_text
from imdbattn.settings.keys import hexdigest


def predict(cfg: DictConfig, text: str | None) -> None:
    """Prints a line per text, with explain=true also a page; with out= writes a table instead."""
    from imdbattn.settings.command_settings import PredictSettings
    from imdbattn.settings.schema import validate_as

    typed = {} if text is None else {"text": text}
    settings = validate_as(PredictSettings, plain_settings(cfg) | typed)
    from imdbattn.launch.predict_files import open_texts, write_prediction_table

    texts, kept = open_texts(settings)
    from imdbattn.report.prediction_page import page, print_predictions
    from imdbattn.runs.apply import load_predictor, predictions_of

    predictor, folder = load_predictor(settings)
    if settings.out:
        write_prediction_table(predictor, texts, settings, kept)
        print(f"predictions: {settings.out}")
    elif settings.explain:
        predictions = list(predictions_of(predictor, texts.texts, settings))
        print_predictions(predictions)
        name = hexdigest({"texts": [prediction.text for prediction in predictions]})
        file = folder / "explanations" / f"{name}.html"
        write_atomically(file, page(predictions))
        print(f"page: {file}")
    else:  # a progress bar only if the lines do not go to a terminal
        bar = {"total": texts.total, "unit": " texts", "delay": 1}
        results = predictions_of(predictor, texts.texts, settings)
        for result in tqdm(results, **bar, disable=sys.stdout.isatty() or None):
            print(visible(result.line), flush=True)


def main() -> None:
    text, arguments = separate_text(sys.argv[1:])
    run_command("predict", lambda cfg: predict(cfg, text), arguments)


if __name__ == "__main__":
    main()
