"""How fast, how small, how many bytes: each measure against a floor taken in the same run."""
