"""From a typed command to a job: the command line, its help, resuming, and the jobs of a sweep."""
