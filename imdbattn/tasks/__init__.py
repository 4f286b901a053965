"""The tasks. A file in conf/task names the record of each, which names its classes."""
