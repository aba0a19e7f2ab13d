"""One module per revision, in numerical order."""
