"""Draws a run's pictures: learning curves, positions, and the attention to one text."""

from pathlib import Path

from imdbattn.folders.run import read_curves
from imdbattn.folders.run_folder import ATTENTION_SHARE
from imdbattn.io.files import write_atomically
from imdbattn.report.pages import png
from imdbattn.report.prediction_page import write_attention
from imdbattn.report.run_figures import (
    attention_over_epochs,
    learning_curves,
    write_position_figures,
)
from imdbattn.runs.attention_over_time import QUERY_SHARE, fixed_batches, measure
from imdbattn.tasks.data_module import BatchData
from imdbattn.tasks.learner import Learner


def draw_pictures(module: Learner, data: BatchData, folder: Path) -> None:
    """Draws into pictures/ of a run folder, after training and scoring."""
    pictures = folder / "pictures"
    module.eval()
    if (file := folder / "metrics.csv").exists():
        curves = read_curves(file)
        figure = learning_curves(curves, *module.curve_labels)
        write_atomically(pictures / "learning_curves.png", png(figure))
        if any(name.startswith(ATTENTION_SHARE) for name in curves):
            batches = fixed_batches(data, module.settings.attention_reviews)
            measured = measure(module, batches)
            shares = {
                name: values_NH.numpy()
                for (name, quantity), values_NH in measured.items()
                if quantity == QUERY_SHARE
            }
            figure = attention_over_epochs(curves, shares)
            write_atomically(pictures / "attention_entropy.png", png(figure))
    write_position_figures(
        module.net, getattr(module.settings.data, "max_tokens", None) or 512, pictures
    )
    prediction = module.prediction_to_draw(data)
    if prediction is not None:
        write_attention(prediction, pictures)
