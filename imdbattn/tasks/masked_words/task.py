"""The task `masked_words`: pretraining of a classifier's encoder."""

from imdbattn.tasks.reviews.task import Reviews


class MaskedWordTask(Reviews):
    """Predicts masked words of reviews; model=pretrained starts from the result."""

    name = "masked_words"
    settings = "imdbattn.tasks.masked_words.settings.MaskedWordSettings"
    data = "imdbattn.tasks.masked_words.module.MaskedWordData"
    module = "imdbattn.tasks.masked_words.module.MaskedWordModule"
    predictor = None
    pictures = "imdbattn.tools.explain.pictures.draw_curves"
    encoder = "encoder."
    starts_model = "pretrained"
