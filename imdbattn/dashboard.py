"""Builds a W&B workspace for the runs of a project: `python -m imdbattn.dashboard entity=<user or team>`."""

from pathlib import Path

from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.files import write_atomically
from imdbattn.settings import TEXT, YES_OR_NO, command, maybe, number, obey, plain
from imdbattn.tracking.dashboard import save, workspace

RULES = {
    "entity": maybe(TEXT),
    "project": TEXT,
    "by": TEXT,
    "timeout": number(0),
    "dry_run": YES_OR_NO,
    "out": TEXT,
}


@command("dashboard", "out", "group")
def main(cfg: DictConfig) -> None:
    """Prints the address of the workspace, or with dry_run=true the path of its JSON."""
    settings = plain(cfg)
    obey(settings, RULES)
    if not settings["dry_run"] and not settings["entity"]:
        raise UserError("entity=<W&B user or team> is needed, or dry_run=true writes the workspace as JSON")
    built = workspace(settings)
    if not settings["dry_run"]:
        print(f"dashboard: {save(built, settings['timeout'])}")
        return
    path = Path(settings["out"]).expanduser()
    # The library has no public function for the JSON that it sends.
    write_atomically(path, built._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n")
    print(f"dashboard: {path}")


if __name__ == "__main__":
    main()
