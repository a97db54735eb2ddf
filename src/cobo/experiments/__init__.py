"""The experiments: a TOML preset each, and the code that builds its federation."""

from cobo.experiments.experiment import Experiment, Parts, load_experiment, override
from cobo.experiments.images import CrossDevice, CrossDeviceSmall, CrossSilo, CrossSiloSmall
from cobo.experiments.language import Language, LanguageSmall
from cobo.experiments.permuted import Digits, FashionMnist
from cobo.experiments.quadratic import Quadratic

EXPERIMENTS: dict[str, type[Experiment]] = {
    "digits": Digits,
    "fashion-mnist": FashionMnist,
    "quadratic": Quadratic,
    "cross-silo": CrossSilo,
    "cross-silo-small": CrossSiloSmall,
    "cross-device": CrossDevice,
    "cross-device-small": CrossDeviceSmall,
    "language": Language,
    "language-small": LanguageSmall,
}

__all__ = ["EXPERIMENTS", "Experiment", "Parts", "load_experiment", "override"]
