"""One module per revision, in order of their numbers."""
