"""A task is a class that names its other classes: for settings, data, training and prediction. A
run names it in `task._target_`.

In the core, only the room `exports` imports the folder of a task. A custom task is a subclass of
`Task` in any package (docs/own_parts.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from imdbattn.errors import UserError, wrapping_errors
from imdbattn.settings.objects import Class, import_class
from imdbattn.settings.schema import TrainingSettings, validate_as

if TYPE_CHECKING:
    from imdbattn.data.splits import Source
    from imdbattn.folders.run import Run
    from imdbattn.tasks.data_module import BatchData
    from imdbattn.tasks.learner import Learner
    from imdbattn.tasks.predictor import Predictor


class Task:
    """A task: its settings, and the classes that read its data, train its network and apply it.

    The last three classes may be given by their dotted paths. The package's own tasks do so,
    because a prediction does not load Lightning, and wrong settings are refused before torch is
    loaded.

    Attributes:
        name: the task's name in messages.
        settings_class: the class of the settings, a subclass of settings.schema.TrainingSettings.
        data: the LightningDataModule, a subclass of tasks.data_module.BatchData.
        module: the LightningModule, a subclass of tasks.learner.Learner.
        predictor: a subclass of tasks.predictor.Predictor that applies the trained network to new
            texts without Lightning; None if the network is not applied to texts.
        encoder_prefix: the prefix of the weights that a run of another task can start from with
            `init`; empty if only runs of this task can.
        next_model: the model that starts from a run of this task; empty if the run is a result
            of its own.
    """

    name: ClassVar[str]
    settings_class: ClassVar[type[TrainingSettings]]
    data: ClassVar[type[BatchData] | str]
    module: ClassVar[type[Learner] | str]
    predictor: ClassVar[type[Predictor] | str | None] = None
    encoder_prefix: ClassVar[str] = ""
    next_model: ClassVar[str] = ""

    @classmethod
    def class_of(cls, name: str, base: type[Class]) -> type[Class]:
        """Returns the class `data`, `module` or `predictor`, imported if it is a path."""
        named = getattr(cls, name)
        return import_class(named, f"task.{name}", base) if isinstance(named, str) else named

    @classmethod
    def find_source(cls, data: Any) -> Source | None:
        """Returns the source that `data` settings name; None if its content is not known before
        it is read. Raises an exception for data that cannot be found.
        """
        return None


def task_of(settings: TrainingSettings) -> type[Task]:
    """Returns the task that a run's settings name."""
    return import_class(settings.task.target, "task._target_", Task)


def training_settings(settings: Mapping[str, Any]) -> TrainingSettings:
    """Returns the settings of a training run as an object of its task's class.

    Raises UserError that names the first wrong setting.
    """
    target = (settings.get("task") or {}).get("_target_")
    if target is None:
        raise UserError("task must be given, such as task=reviews")
    task = import_class(target, "task._target_", Task)
    return validate_as(task.settings_class, settings)


def settings_of(run: Run) -> TrainingSettings:
    """Returns a run's checked settings. Raises UserError for a wrong or missing value, and for a
    class that is not trusted.
    """
    recorded = run.trusted_settings
    with wrapping_errors(run.settings_file):
        return training_settings(recorded)
