"""Origins of files of other tools: a path, a registered version, or a script of the job's own."""
