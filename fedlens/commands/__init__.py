"""One module a sub-command; heavy imports stand inside the functions, so that `--help` stays quick."""
