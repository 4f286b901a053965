"""The settings of imdbattn.dashboard, conf/dashboard.yaml."""

from imdbattn.settings.schema import Flag, Group, Text


class DashboardSettings(Group):
    entity: Text | None
    project: Text
    group: Text | None
    by: Text
    dry_run: Flag
    out: Text
