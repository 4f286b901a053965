"""The task `seq2seq`: pairs of sequences, which an encoder-decoder maps to each other."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from imdbattn.errors import UserError
from imdbattn.settings.schema import (
    TOGETHER,
    EncoderDecoder,
    Reverse,
    Training,
    Translation,
    are_for_pairs,
)
from imdbattn.tasks.task import Task


class Seq2SeqSettings(Training):
    """The settings of a run that learns pairs of sequences."""

    @classmethod
    def check_groups(cls, settings: Mapping[str, Any]) -> None:
        if not all(are_for_pairs(settings)):
            raise UserError(TOGETHER)

    choose_by: Literal["accuracy", "loss", "bleu"]
    data: Annotated[Reverse | Translation, Field(discriminator="source")]
    model: EncoderDecoder


class Seq2Seq(Task):
    """Reverses strings, or translates sentences."""

    name = "seq2seq"
    settings = Seq2SeqSettings
    data = "imdbattn.tasks.seq2seq.module.PairData"
    module = "imdbattn.tasks.seq2seq.module.Seq2SeqModule"
    predictor = "imdbattn.tasks.seq2seq.predictor.Seq2SeqPredictor"
    pictures = "imdbattn.tools.explain.pictures.draw_pair"

    @classmethod
    def same_data(cls, data: Any, source: str, key: str | None) -> bool:
        """Returns whether the files are those of a run."""
        from imdbattn.data import pairs

        return bool(pairs.find_source(data).checksum == str(key).split("-")[0])
