"""The words whose vectors are trained (nn/beyond/tuned_vectors).

Shape suffix: R words whose vectors are trained.
"""

from torch import Tensor

from imdbattn.data.corpus import ReviewCorpus
from imdbattn.data.tokenizer import FIRST_WORD
from imdbattn.io.files import SavedNet, Weights


def ids_to_tune(corpus: ReviewCorpus, initial: SavedNet | None, embedding: str) -> Tensor:
    """Returns the ids of the words whose vectors a new model trains, (R,): those of the initial
    weights, or else all words of the training reviews. embedding: the name of the Embedding.
    """
    tuned_R = tuned_ids(initial.weights, embedding) if initial else None
    if tuned_R is not None:
        return tuned_R
    ids = corpus.splits["train"].ids.unique()
    return ids[ids >= FIRST_WORD].long()


def tuned_ids(weights: Weights, embedding: str) -> Tensor | None:
    """Returns the ids of the words with trained vectors, (R,), from weights; None if there are
    none. embedding: the name of the Embedding.
    """
    slot_V = weights.get(f"{embedding}.slot_V")
    return None if slot_V is None else slot_V.nonzero()[:, 0]
