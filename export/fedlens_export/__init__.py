"""From a model and a training objective to a bundle of programs that every client can run."""
