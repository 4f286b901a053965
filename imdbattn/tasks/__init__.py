"""The tasks. conf/task/ names the classes of each, and settings.schema.TASKS its settings."""
