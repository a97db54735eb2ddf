"""The experiments: a TOML preset each, and the code that builds its federation."""

from cobo.experiments.digits import Digits
from cobo.experiments.experiment import Experiment, Parts, load_experiment, override

EXPERIMENTS: dict[str, type[Experiment]] = {"digits": Digits}

__all__ = ["EXPERIMENTS", "Experiment", "Parts", "load_experiment", "override"]
