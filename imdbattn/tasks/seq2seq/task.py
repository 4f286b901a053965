"""The task `seq2seq`: pairs of sequences, which an encoder-decoder maps to each other."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from imdbattn.errors import UserError
from imdbattn.settings.keys import flattened
from imdbattn.settings.pair_settings import ReverseSettings, TranslationSettings
from imdbattn.settings.schema import ClassSettings, Count, ModelSettings, Share, TrainingSettings
from imdbattn.tasks.task import Task

if TYPE_CHECKING:
    from imdbattn.data.splits import Source


class EncoderDecoderNet(ClassSettings):
    width: Count
    hidden: Count
    layers: Annotated[Count, Field(le=1000)]
    cell: Literal["gru", "lstm"]
    dropout: Share
    score: ClassSettings | None


class EncoderDecoderModel(ModelSettings):
    net: EncoderDecoderNet


def kind_of_data(data: ReverseSettings | TranslationSettings | Mapping[str, object]) -> str:
    """Returns the tag by which pydantic selects the class of the data settings."""
    source = data.get("source") if isinstance(data, Mapping) else data.source
    return "reverse" if source == "reverse" else "translation"


class Seq2SeqSettings(TrainingSettings):
    """Settings for learning pairs of sequences."""

    @model_validator(mode="before")
    @classmethod
    def check_groups(cls, settings: Mapping[str, object]) -> Mapping[str, object]:
        """Raises UserError for data or a model of another task, before the settings are checked."""
        keys = flattened(settings).keys()
        are_pairs = not keys.isdisjoint(("data.letters", "data.languages"))
        if not are_pairs or "model.net.hidden" not in keys:
            raise UserError(
                "task=seq2seq, data=reverse or translation, and a model for pairs (seq2seq,"
                " seq2seq_attention and others) must be used together"
            )
        return settings

    choose_by: Literal["accuracy", "loss", "bleu"]
    data: Annotated[
        Annotated[ReverseSettings, Tag("reverse")]
        | Annotated[TranslationSettings, Tag("translation")],
        Discriminator(kind_of_data),
    ]
    model: EncoderDecoderModel


class Seq2SeqTask(Task):
    """Reverses strings, or translates sentences."""

    name = "seq2seq"
    settings_class = Seq2SeqSettings
    data = "imdbattn.tasks.seq2seq.module.PairData"
    module = "imdbattn.tasks.seq2seq.module.Seq2SeqModule"
    predictor = "imdbattn.tasks.seq2seq.predictor.Seq2SeqPredictor"

    @classmethod
    def find_source(cls, data: Any) -> "Source | None":
        from imdbattn.data.sources.pairs import find_pair_source

        return find_pair_source(data)
