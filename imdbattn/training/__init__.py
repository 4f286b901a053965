"""Lightning: module, data module, callbacks, loggers, building from config."""
