"""A trained model: predict, explain, evaluate."""

import copy
import os
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from torch import nn

from imdbattn.api.display import Metrics, StrPath
from imdbattn.api.predictions import Explanation, Predictions
from imdbattn.errors import UserError, wrapping_errors
from imdbattn.exports.folder import write_export
from imdbattn.io.files import write_table
from imdbattn.runs.apply import load_predictor, predictions_of
from imdbattn.settings.command_settings import EvaluateSettings, PredictSettings, with_defaults
from imdbattn.settings.keys import NestedDict, overlay
from imdbattn.settings.schema import validate_as
from imdbattn.tasks.prediction import Prediction
from imdbattn.tasks.predictor import Predictor
from imdbattn.tasks.reviews.predictor import ReviewPredictor

MODEL_LOCK = threading.Lock()  # an explanation hooks the model for all threads


def load(path: StrPath, trust: str | Iterable[str] | None = None, **data: object) -> "Model":
    """Opens the best model of a run.

    Args:
        path: a run folder, an exported folder, or a checkpoint in the checkpoints/ of a run folder.
        trust: packages whose classes the folder may name, besides imdbattn's. They are imported.
        data: locations on this machine, as the settings `data.*` of imdbattn.predict, such as
            cache_dir="..." and vectors={"path": "..."}.

    Raises UserError for a folder that is not a run, and for missing, damaged or changed files.

    >>> imdbattn.load("runs/latest").labels
    ['neg', 'pos']
    """
    packages = trust if trust is None or isinstance(trust, str) else list(trust)
    options = with_defaults("predict", run=os.fsdecode(path), trust=packages, data=data)
    return Model(*load_predictor(options), options)


class Model:
    """A trained model; `load` makes it.

    >>> model = imdbattn.load("runs/latest")
    >>> model.predict("A great and lovely film.")[0].label
    'pos'

    Args:
        predictor: the result of runs.apply.load_predictor.
        folder: the run folder.
        options: contains the `data` settings of this machine.
    """

    def __init__(self, predictor: Predictor, folder: Path, options: PredictSettings):
        self.predictor = predictor
        self.folder = folder.resolve()
        self.options = options

    @property
    def settings(self) -> NestedDict:
        """All settings of the run, as in its config.yaml."""
        return dict(self.predictor.settings.dump())

    @property
    def labels(self) -> list[str]:
        """Names of the classes; empty for an encoder-decoder."""
        return list(self.predictor.metadata.get("labels", ()))

    @property
    def net(self) -> nn.Module:
        """The network."""
        return self.predictor.net

    def __repr__(self) -> str:
        labels = f"labels={self.labels}, " if self.labels else ""
        return (
            f"Model({self.predictor.settings.model.name},"
            f" {labels}folder={os.path.relpath(self.folder)!r})"
        )

    def predict(
        self, texts: str | Iterable[str], beams: int = 1, length_penalty: float = 1.0
    ) -> Predictions:
        """Returns a label for each text, or the output of an encoder-decoder.

        Args:
            texts: one text, or several in a list, a pandas Series or any iterable.
            beams, length_penalty: for an encoder-decoder; settings of imdbattn.predict.

        A text without words is labeled, with a warning.

        >>> model = imdbattn.load("runs/latest")
        >>> model.predict(["A great and lovely film.", "A bad and awful film."]).labels.tolist()
        ['pos', 'neg']
        """
        return Predictions(
            self._read(list_of_texts(texts), beams=beams, length_penalty=length_penalty)
        )

    def explain(self, text: str) -> Explanation:
        """Returns the prediction for one text, with the weights of every attention.

        Raises UserError for a model with a part that does not show its attention.

        >>> imdbattn.load("runs/latest").explain("A film about nothing.").words
        ['A', 'film', 'about', 'nothing', '.']
        """
        return Explanation(*self._read(list_of_texts([text]), explain=True))

    def _read(self, texts: list[str], **changes: float) -> tuple[Prediction, ...]:
        """Returns the predictions for texts. changes: options of imdbattn.predict."""
        options = validate_as(PredictSettings, self.options.model_dump() | changes)
        with MODEL_LOCK:
            return tuple(predictions_of(self.predictor, texts, options))

    def evaluate(
        self,
        data: StrPath | Iterable[str] | None = None,
        labels: Iterable[object] | None = None,
        split: str = "test",
        precision: str | int | None = None,
        **settings: object,
    ) -> Metrics:
        """Returns accuracy, loss and the other values of imdbattn.evaluate.

        Nothing is written into the run folder.

        Args:
            data: a file or folder, all of which is the test set; or texts; None is the run's data.
            labels: labels of the texts, by name or number.
            split: train, validation or test.
            precision: precision of the Trainer; None uses the run's own.
            settings: `data.*` settings of imdbattn.evaluate, such as text_column="review",
                source="packaged", or label_names=["negative", "positive"], the labels of the data
                in the order of the classes.

        Raises UserError for wrong input, or if the run's own data have changed.

        >>> model = imdbattn.load("runs/latest")
        >>> columns = {"text_column": "review", "label_column": "sentiment"}
        >>> metrics = model.evaluate("my_reviews.csv", **columns)
        >>> texts = ["A great and lovely film.", "A bad and awful film."]
        >>> model.evaluate(texts, ["pos", "neg"]).accuracy
        1.0
        """
        wanted = "evaluate needs a file or folder, or texts and a label for each"
        if labels is None:
            if data is not None:
                with wrapping_errors(wanted):
                    settings["path"] = os.fspath(data)  # type: ignore[arg-type]
            return self._score(split, precision, settings)
        with TemporaryDirectory() as folder:
            file = Path(folder, "given.parquet")
            with wrapping_errors(wanted):
                if isinstance(data, str) and os.path.exists(data):
                    raise UserError(f"{data} is a file or folder, which contains labels")
                # `predict` reads these characters as unknown, too.
                texts = [re.sub("[\0\ud800-\udfff]", "\ufffd", x) for x in list_of_texts(data)]
                names = [str(label) for label in ([labels] if isinstance(labels, str) else labels)]
                write_table(file, {"text": texts, "label": names})
            settings |= {"text_column": "text", "label_column": "label", "path": str(file)}
            metrics = self._score(split, precision, settings)
        return Metrics({**metrics, "test_set": f"{len(texts)} given texts"})

    def _score(
        self, split: str, precision: str | int | None, settings: Mapping[str, object]
    ) -> Metrics:
        """Returns the metrics of a split. settings: the `data.*` settings."""
        # These import Lightning, which predictions do not need.
        from imdbattn.api.torch_settings import preserved_torch_settings
        from imdbattn.launch.composition import composed
        from imdbattn.launch.hydra_config import plain_settings
        from imdbattn.runs.evaluate import evaluate

        changes = {
            "run": str(self.folder),
            "split": split,
            "trainer": {"precision": precision},
            "data": overlay(self.options.data.model_dump(), dict(settings)),
        }
        defaults_of_evaluate = plain_settings(composed("evaluate", ["run=null"]))
        options = validate_as(EvaluateSettings, overlay(defaults_of_evaluate, changes))
        predictor = copy.copy(self.predictor)
        with MODEL_LOCK:  # a Trainer may move its net to another device or precision
            predictor.net = copy.deepcopy(self.net)
        with preserved_torch_settings():
            return Metrics(evaluate(options, predictor, self.folder, write=False))

    def export(self, out: StrPath, vectors: str = "training", **options: object) -> NestedDict:
        """Writes a self-contained folder for `load` and imdbattn.predict. Returns facts about it.

        Args:
            out: a new or empty folder.
            vectors: "training" keeps the words that occurred in training, and reads others as
                unknown; "all" keeps all.
            options: precision="float32", graph=True, onnx=True, as the settings of imdbattn.export.

        Raises UserError if `out` exists and is not empty.

        >>> imdbattn.load("runs/latest").export("my_model")["changed_labels"]
        0
        >>> imdbattn.load("my_model").predict("A great and lovely film.")[0].label
        'pos'
        """
        paths = {"run": str(self.folder), "out": os.fspath(out)}
        chosen = with_defaults("export", **paths, vectors=vectors, **options)
        return write_export(self.predictor, chosen)

    def page(self, out: StrPath, **options: Any) -> dict[str, Any]:
        """Writes one HTML file that shows and computes this model in any browser, without a server.

        Args:
            out: the file; a page that this method has written is replaced.
            options: words=20_000 (None: all that occur in training), precision="float16" or
                "float32", reviews=48, as the settings of imdbattn.explore.

        Returns its size in bytes and facts about its models. Raises UserError for a model that a
        browser cannot compute: an encoder-decoder, phrases, a convolution, or a part of your own.
        """
        from imdbattn.report.finished_runs import read_run
        from imdbattn.tools.explore.onefile import PageModel, write_page

        predictor = cast(ReviewPredictor, self.predictor)  # PageModel checks it
        model = PageModel(predictor.settings.model.name, predictor, read_run(self.folder))
        return write_page([model], Path(out), **options)


def list_of_texts(texts: str | Iterable[str] | StrPath | None) -> list[str]:
    """Returns texts as a list. Raises UserError for items that are not strings, such as None, and
    for a container whose items are not the texts.
    """
    if isinstance(texts, str):
        return [texts]
    # Iterating over these gives names of columns.
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):
        raise UserError("give a text, or texts in a list or in one column of a data frame")
    items = list(texts)  # type: ignore[arg-type] # a TypeError names what is not iterable
    for number, item in enumerate(items):
        if not isinstance(item, str):
            raise UserError(f"text {number} (counted from 0) is {item!r} instead of a text")
    return items
