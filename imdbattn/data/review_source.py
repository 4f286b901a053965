"""Finds the source of reviews that the `data` settings name."""

from typing import TYPE_CHECKING

from imdbattn.data.sources.imdb import decided, hub_or_packaged, hub_source, packaged_source
from imdbattn.data.splits import Source
from imdbattn.io.files import expanded

if TYPE_CHECKING:
    from imdbattn.settings.schema import ReviewDataSettings


def find_source(cfg: "ReviewDataSettings") -> Source:
    """Returns the source that the `data` settings name; `auto` is decided here.

    Only the modules of that source are imported.
    """
    if not isinstance(cfg.source, str):
        from imdbattn.data.sources.own import own_reviews

        return own_reviews(cfg.source, cfg.label_names)
    if cfg.source == "order_probe":
        from imdbattn.data.sources.order_probe import order_probe_source

        return order_probe_source(cfg.probe)
    if cfg.path:
        from imdbattn.data.user_files.review_files import path_source

        return path_source(expanded(cfg.path), cfg)
    if cfg.hub:
        from imdbattn.data.sources.hub import hub_reviews

        return hub_reviews(cfg)
    if cfg.source == "auto":
        return hub_or_packaged(cfg.hub_timeout)
    return hub_source() if cfg.source == "hub" else packaged_source()


def decided_source(data: "ReviewDataSettings") -> str | None:
    """Returns the source that data.source=auto stands for; None if it is not used.

    Raises an exception for a data.path that does not exist, before the first of many jobs.
    """
    if data.source not in ("auto", "path"):
        return None
    find_source(data)
    return None if data.path or data.hub else decided(data.hub_timeout)
