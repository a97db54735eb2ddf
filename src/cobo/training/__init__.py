"""The loop around a method: optimiser, evaluation, events, checkpoints, progress."""
