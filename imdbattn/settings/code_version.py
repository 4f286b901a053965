"""The version of a user's callable, whose results are stored."""

import inspect
import json
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from imdbattn.settings.objects import TARGET, as_mapping, import_object


def code_version(setting: object, group: str) -> str:
    """Returns 16 hex digits that change with the arguments of a callable, the version of its
    package, and the file that defines it. group: for example data.tokenizer.
    """
    settings = as_mapping(setting)
    target = str(settings[TARGET])
    function = import_object(target, f"{group}.{TARGET}")
    package = sys.modules[target.partition(".")[0]]
    source = ""
    with suppress(TypeError, OSError):  # the callable is built-in or compiled
        file = inspect.getsourcefile(inspect.unwrap(function))
        source = sha256(Path(str(file)).read_bytes()).hexdigest()
    version = getattr(package, "__version__", "")
    decides_results = json.dumps([settings, version, source], sort_keys=True)
    return sha256(decides_results.encode()).hexdigest()[:16]
