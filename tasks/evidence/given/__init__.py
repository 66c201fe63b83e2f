"""Where files of other tools come from: a path, a registered version, or a script of the job's own."""
