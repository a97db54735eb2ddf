"""All about W: which pairs to ask, what a pair says, where W may live, how it moves, and how it pulls models."""
