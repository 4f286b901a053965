"""The tasks. A file in conf/task names the Task of each, which names its classes."""
