"""The reference backend: a bigram model in numpy with real losses, optimizer state and checkpoints, in milliseconds."""
