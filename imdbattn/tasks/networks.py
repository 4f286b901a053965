"""Builds the networks of the tasks from their settings.

Shape suffixes: D vector width, V rows of the vectors, R words whose vectors are trained.
"""

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from imdbattn.data.ragged import BatchOptions, Ragged
from imdbattn.data.word_vectors import WordVectors
from imdbattn.errors import wrapping_errors
from imdbattn.nn.ladder import Embedding
from imdbattn.settings.objects import instantiate
from imdbattn.settings.schema import ClassifierModel, ModelSettings, ReviewDataSettings

if TYPE_CHECKING:
    from imdbattn.nn.beyond.context import Phrases


def make_net(model: ModelSettings, *arguments: object, **options: object) -> nn.Module:
    """Returns the network that `model.net` describes. Other arguments depend on the data."""
    partial_net = instantiate(model.net, "model.net", nn.Module)
    with wrapping_errors(f"model={model.name}"):
        net: nn.Module = partial_net(*arguments, **options)
    return net


def build_classifier(
    model: ClassifierModel,
    vectors: WordVectors,
    classes: int,
    tuned_R: Tensor | None,
    phrases: "Phrases | None" = None,
) -> nn.Module:
    """Returns the classifier that the `model` settings describe. tuned_R: ids of the words whose
    vectors are trained.
    """
    table_VD = torch.from_numpy(vectors.table_VD)
    shift_D, scale_D = torch.zeros(table_VD.shape[1]), torch.ones(table_VD.shape[1])
    if model.embedding.standardize:
        shift_D, scale_D = torch.tensor(vectors.mean_D), 1 / torch.tensor(vectors.std_D)
    embedding = Embedding(table_VD, shift_D, scale_D)
    if tuned_R is not None:
        from imdbattn.nn.beyond.tuned_vectors import TunedEmbedding

        embedding = TunedEmbedding(table_VD, shift_D, scale_D, tuned_R, model.embedding.mixout)
    context = {}
    if phrases or model.mixer:
        from imdbattn.nn.beyond.context import Context

        mixer = instantiate(model.mixer, "model.mixer", nn.Module)
        context["context"] = partial(Context, phrases=phrases, mixer=mixer)
    return make_net(model, embedding, classes, **context)


def reviews_for(model: ClassifierModel, reviews: Ragged) -> Ragged:
    """Returns reviews for the network: for phrases, batches need the words before each word."""
    if not model.phrases:
        return reviews
    from imdbattn.data.phrases import with_words_before

    return with_words_before(reviews, model.phrases.longest)


def batch_options(data: ReviewDataSettings) -> BatchOptions:
    """Returns the options of batches for evaluation, and for training without word dropout."""
    return BatchOptions(data.max_tokens, data.start_share, pad_to=data.pad_to)
