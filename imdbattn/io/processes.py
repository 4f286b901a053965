"""Environment variables by which the processes of one command know each other."""

# the imdbattn process that started this one
PARENT_PID = "IMDBATTN_PARENT_PID"
# the process of the sweep or search that this one belongs to
SWEEP_PID = "IMDBATTN_SWEEP_PID"
