"""Composes a command's config without sys.argv: for `--help`, Python and searches."""

import threading
from collections.abc import Sequence

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from imdbattn.launch.errors import as_user_error
from imdbattn.launch.hydra_config import (
    HYDRA_VERSION,
    quote,
    refuse_typed_credentials,
    register_resolvers,
    with_task,
)
from imdbattn.settings.keys import conf_dir

COMPOSING = threading.Lock()  # Hydra has one state per process


def composed(
    config_name: str, overrides: Sequence[str] = (), paths: Sequence[str] = ()
) -> DictConfig:
    """Returns a command's config, with `hydra`, of these overrides instead of sys.argv. paths: see
    `command`. Raises UserError.
    """
    register_resolvers()
    quoted = [quote(override, paths) for override in with_task(config_name, overrides)]
    refuse_typed_credentials(quoted)
    with COMPOSING:
        # of a caller that uses Hydra itself
        outer, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
        try:
            with hydra.initialize_config_dir(str(conf_dir()), **HYDRA_VERSION):
                return hydra.compose(config_name, quoted, return_hydra_config=True)
        except Exception as error:
            raise as_user_error(error, config_name, quoted) from error
        finally:
            GlobalHydra.instance().hydra = outer
