"""The paper's example and theorem: constants by hand, bounds held where they can be, and counter-examples where not."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import started
from scipy.optimize import minimize

from cobo.cli import main
from cobo.compute.task import Task
from cobo.errors import ConfigError
from cobo.experiments import EXPERIMENTS, load_experiment
from cobo.experiments.figure1 import situations
from cobo.experiments.quadratic import Quadratic
from cobo.experiments.theory import Constants, M, constants, pairs, printed_zeta2, zeta2
from cobo.experiments.theory_bench import SideBySide, conditions, quantities, right, selection, series, walk
from cobo.federation import Federation
from cobo.methods import CoBo


def preset(**changes) -> Quadratic:
    return load_experiment("quadratic", EXPERIMENTS).replace(**changes)


def no_tick(kind: str) -> None: ...


SIGMA = 2.0  # T0 = 202


@pytest.fixture(scope="module")
def walked():
    """Exact selection for T0 rounds, 3 seeds."""
    torch.set_num_threads(1)
    return walk(preset(sigma=SIGMA), "exact", constants(preset(sigma=SIGMA)).eta(202), 202, 3, no_tick)


# The federation


def test_gradient_noise_has_exactly_the_variance_sigma_squared():
    experiment = preset(sigma=0.7, batch_size=2)
    parts = experiment.build(0)
    for client in parts.clients:
        inputs, targets = client.train.fields
        x = torch.randn(4, dtype=torch.float64)
        # All batches of two samples drawn with replacement, each as likely as any other.
        single = inputs * (inputs * x - targets)
        batches = (single[:, None] + single[None]) / 2
        mean = batches.mean((0, 1))
        a = float(inputs[0]) ** 2
        assert torch.allclose(mean, a * (x - experiment.centres[client.group]))
        assert (batches - mean).square().sum(-1).mean().item() == pytest.approx(0.7**2, rel=1e-12)


def test_drawn_gradients_have_that_noise_and_are_unbiased():
    experiment = preset()
    parts = experiment.build(0)
    federation = Federation(parts.clients, parts.model, task=Task(parts.loss), batch_size=experiment.batch_size)
    X = federation.start
    rows = torch.stack([federation.gradients(X, round=t).rows for t in range(150)])
    a = torch.tensor(experiment.curvatures * 3, dtype=torch.float64)[:, None]
    noise = rows - a * (X - experiment.centres.repeat_interleave(2, 0))
    assert noise.square().sum(-1).mean().item() == pytest.approx(1.5**2, rel=0.08)
    assert noise.mean((0, 1)).abs().max() < 5 * 1.5 / math.sqrt(900)


def test_every_group_starts_equally_far_from_its_centre_whichever_way_is_up():
    experiment = preset()
    parts = experiment.build(0)
    starts = [Federation(parts.clients, parts.model, task=Task(parts.loss), seed=s).start[0] for s in (0, 1)]
    assert not torch.equal(*starts)
    for start in starts:
        distance2 = (start - experiment.centres).square().sum(1)
        assert torch.allclose(distance2, torch.full_like(distance2, 20.0))


# The constants


def test_constants_are_those_computed_by_hand():
    k = constants(preset())  # a = 1 and 1.4, sigma = 1.5, distance^2 = 2^2 + 4^2
    assert k.L == 1.4
    assert pytest.approx(1 / 6) == k.M
    assert pytest.approx((0.5 * 1.0 * 20 + 0.5 * 1.4 * 20) / 2) == k.Delta
    assert k.rho == pytest.approx(math.sqrt(3) * 1.4 / 2)
    assert k.cap == pytest.approx(1 / (2 * math.sqrt(3) * 1.4))
    assert pytest.approx(48 * 1.4 * 12 / 2.25) == k.T0
    assert M((1.0, 2.0, 3.0)) == 0.5
    B = math.sqrt(1.4 * 2.25 * 12 / 1000)
    assert k.printed(1000) == pytest.approx((6 / 36 / (3 * 1.4**2) * B, 3 * B, 4 * B))


def test_the_step_size_is_capped_up_to_T0_and_then_falls_with_the_root_of_T():
    k = constants(preset())
    assert k.eta(358) == k.cap
    assert k.eta(359) < k.cap
    assert k.eta(4000) == pytest.approx(2 * math.sqrt(12) / (1.5 * math.sqrt(1.4 * 4000)))
    # At that step size the proof's two terms are B each; at the cap the first is larger, without limit.
    for T in (1000, 4000):
        assert 2 * k.Delta / (k.eta(T) * T) == pytest.approx(k.B(T))
        assert k.L * k.eta(T) * k.sigma**2 / 2 == pytest.approx(k.B(T))
    # The transient Delta / (eta T) alone exceeds the bound of the gradient below T0 / 36.
    assert k.Delta / (k.cap * 9) > k.printed(9).gradient
    assert k.Delta / (k.cap * 10) < k.printed(10).gradient


def test_the_presets_step_size_and_pull_are_the_theorems():
    experiment = load_experiment("quadratic", EXPERIMENTS)
    k = constants(experiment)
    assert experiment.lr == pytest.approx(k.eta(experiment.rounds), rel=1e-5)
    assert experiment.method("cobo").rho == pytest.approx(k.rho, rel=1e-5)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.4), (0.3, 0.5), (2.0, 0.1)])
def test_zeta_is_the_true_minimum_and_the_printed_one_has_a_wrong_denominator(a, b):
    p, q = np.array([1.0, -2.0]), np.array([0.5, 3.0])
    distance2 = float(((p - q) ** 2).sum())
    found = minimize(lambda x: a**2 * ((x - p) ** 2).sum() + b**2 * ((x - q) ** 2).sum(), np.zeros(2), tol=1e-12).fun
    assert zeta2(a, b, distance2) == pytest.approx(found, rel=1e-6)
    # Still a lower bound, but not a tight one, where a^2 + b^2 >= 1; too large elsewhere.
    assert (printed_zeta2(a, b, distance2) <= found) == (a**2 + b**2 >= 1)


def test_every_pair_has_its_constant():
    experiment = preset()
    found = {(p["i"], p["j"]): p for p in pairs(experiment)}
    assert len(found) == 15
    assert found["group0-client0", "group0-client1"]["M"] == pytest.approx(0.4 / 2.4)
    apart = 12  # three points on a circle of radius 2
    across = found["group0-client0", "group1-client1"]
    assert across["zeta2"] == pytest.approx(1.96 / 2.96 * apart)
    assert across["printed_zeta2"] == pytest.approx(1.96 / 2.96**2 * apart)


def test_the_step_diverges_with_a_rho_that_the_theorem_allows():
    """It sets no upper limit; the proof does, eta rho c <= 1/2, in passing."""
    k = constants(preset())
    T = math.ceil(k.T0)
    assert 1 - k.eta(T) * (k.rho * k.c + min(k.a)) > 0
    assert abs(1 - k.eta(T) * (5 * k.rho * k.c + min(k.a))) > 1  # the factor of x_i - x_j in every round


# The bounds


def test_gradient_bounds_hold_from_T0_on_and_the_corrected_consensus_bound_too(walked):
    experiment = preset(sigma=SIGMA)
    measured = quantities(experiment, walked.X).mean((1, 2)).max(1).values  # [3], the worst group
    printed, corrected = constants(experiment).printed(202), constants(experiment).corrected(202)
    assert measured[1] < printed.gradient
    assert measured[2] < printed.client
    assert all(value < bound for value, bound in zip(measured, corrected, strict=True))
    assert measured[0] > 5 * printed.consensus  # the noise that the paper's lemma leaves out


def expected(k: Constants, T: int) -> list[float]:
    """The three quantities in expectation, with right weights: E[(x_i - mu)(x_j - mu)] follows S <- A S A + noise."""
    a, eta, ones = np.array(k.a), k.eta(T), np.ones((k.c, k.c))
    A = np.eye(k.c) - eta * np.diag(a) - eta * k.rho * (k.c * np.eye(k.c) - ones)
    S = k.distance2 * ones
    sums = np.zeros(3)
    for _ in range(T):
        own = np.diag(S)
        sums[1] += (((a[:, None] + a) / 2) ** 2 * (own[:, None] + own + 2 * S) / 4).mean()
        sums[2] += (a**2 * own).mean()
        S = A @ S @ A + eta**2 * k.sigma**2 * np.eye(k.c)
        sums[0] += (np.diag(S)[:, None] + np.diag(S) - 2 * S).mean()
    return list(sums / T)


def test_the_corrected_bounds_hold_in_expectation_for_many_groups_and_the_printed_ones_do_not():
    random = np.random.default_rng(0)
    broken = 0
    for _ in range(30):
        a = random.uniform(1, 2.6, random.integers(2, 6)) * random.choice([0.01, 1, 100])
        k = Constants(tuple(a), float(random.uniform(0.1, 50)), float(random.uniform(0.1, 5) * a.max()))
        assert k.M**2 < 0.2
        for T in (1, 7, 50, 400):
            values = expected(k, T)
            assert all(value <= bound for value, bound in zip(values, k.corrected(T), strict=True))
            broken += values[0] > k.printed(T).consensus
    assert broken > 100  # of 120


def test_in_expectation_from_T0_on_the_printed_gradient_bounds_hold_and_the_consensus_bound_never_does():
    random = np.random.default_rng(1)
    for _ in range(20):
        a = random.uniform(1, 2.6, random.integers(2, 6))
        k = Constants(tuple(a), float(random.uniform(1, 10)), float(random.uniform(2, 5) * a.max()))
        T = math.ceil(k.T0 * random.uniform(1, 4))
        consensus, gradient, client = np.array(expected(k, T)) / k.printed(T)
        assert consensus > 1.5
        assert gradient < 0.5
        assert client < 0.5


def test_a_run_measures_what_is_expected(walked):
    k = constants(preset(sigma=SIGMA))
    distance = float(quantities(preset(sigma=SIGMA), walked.X)[0, 20:].mean())
    assert distance == pytest.approx(expected(k, 202)[0], rel=0.15)


def test_a_short_series_falls_at_least_with_the_root_of_T():
    experiment = preset(sigma=3.0)  # T0 = 90
    k = constants(experiment)
    T = np.array([32, 64, 128])
    sums = [quantities(experiment, walk(experiment, "exact", k.eta(t), t, 3, no_tick).X).mean((1, 2, 3)) for t in T]
    slopes = np.polyfit(np.log(T), np.log(torch.stack(sums).numpy()), 1)[0]
    assert slopes[1] <= -0.5
    assert slopes[2] <= -0.5


def test_exact_selection_keeps_weights_in_groups_at_one_and_finds_the_groups(walked):
    inside = torch.block_diag(*[torch.ones(2, 2)] * 3).bool()
    assert (walked.W[..., inside] == 1).all()
    good = right(preset(), walked.W)
    assert not good[0].any()  # from far away all agree
    assert good[20:].all()


def test_with_equal_curvatures_the_printed_consensus_bound_is_zero_and_the_distance_is_not():
    experiment = preset(curvatures=(1.0, 1.0), sigma=2.5)
    k = constants(experiment)
    T = math.ceil(k.T0)
    path = walk(experiment, "exact", k.eta(T), T, 6, no_tick)
    distance = float(quantities(experiment, path.X)[0].mean())
    assert k.printed(T).consensus == 0
    # |x_i - x_j|^2 settles where noise feeds 2 eta^2 sigma^2 and the pull takes 1 - (1 - eta kappa)^2.
    eta, kappa = k.eta(T), k.rho * 2 + 1.0
    assert distance == pytest.approx(0.5 * 2 * eta * k.sigma**2 / (2 * kappa - eta * kappa**2), rel=0.1)
    assert distance < k.corrected(T).consensus


def test_stochastic_selection_cuts_pairs_in_groups_near_the_optimum_and_exact_selection_does_not():
    path = walk(preset(), "stochastic", constants(preset()).cap, 80, 4, no_tick)
    inside = torch.block_diag(*[torch.ones(2, 2)] * 3).bool() & ~torch.eye(6, dtype=torch.bool)
    assert path.W[:3][..., inside].mean() > 0.95  # gradients are large beside their noise
    assert 0.4 < path.W[40:][..., inside].mean() < 0.8


def test_without_noise_members_of_a_group_reach_one_point():
    experiment = preset(batch_size=None)
    last = walk(experiment, "exact", constants(experiment).cap, 150, 1, no_tick).X[-1, 0]
    assert (last[:, 0] - last[:, 1]).norm(dim=-1).max() < 1e-12
    assert (last - experiment.centres[:, None]).norm(dim=-1).max() < 1e-12


@pytest.mark.parametrize("kind", ["exact", "stochastic", "algorithm-1"])
def test_seeds_side_by_side_do_what_each_would_do_alone(kind):
    experiment = preset()
    k = constants(experiment)
    path = walk(experiment, kind, k.cap, 12, 3, no_tick)
    parts = experiment.build(0)
    names = [c.name for c in parts.clients]
    clients = [type(c)(f"seed1-{c.name}", c.train, group=c.group) for c in parts.clients]
    plain = selection(kind, k.rho, 1).model_dump(exclude={"copies"})
    method = CoBo(**plain)
    assert not isinstance(method, SideBySide)
    federation = Federation(clients, parts.model, task=Task(parts.loss), batch_size=experiment.batch_size)
    _, state = started(parts.clients, parts.model, method, lr=k.cap)
    for t in range(12):
        method.round(state, federation)
        state.round += 1
        assert torch.equal(path.W[t, 1], state.weights)
        assert torch.allclose(path.X[t + 1, 1].view(len(names), -1), state.X, rtol=0, atol=1e-12)


# Figure 1


def test_figure_1_says_collaborate_far_away_and_not_near_the_optimum_nor_when_apart():
    points = situations()["points"]
    assert [points[name]["weight"] for name in "ABC"] == [1.0, 0.0, 0.0]
    for point in points.values():
        g1, g2 = np.array(point["at_midpoint"])
        assert point["product"] == pytest.approx(float(g1 @ g2))
        assert (point["product"] > 0) == (point["weight"] == 1)


# The bench as a whole


def test_a_failing_condition_is_reported_not_raised():
    wide = preset(curvatures=(1.0, 3.0))
    path = walk(wide, "exact", constants(wide).cap, 5, 1, no_tick)
    said = {c["condition"]: c["holds"] for c in conditions(wide, path, 5)}
    assert said["M^2 in (0, 1/5)"] == "fails"
    assert said["zeta_ik^2 >= |grad f_i + grad f_k|^2"] == "cannot hold"


def test_four_groups_at_the_capped_step_size_are_refused_as_unstable():
    experiment = preset(groups=4)
    with pytest.raises(ConfigError, match="cannot be stable"):
        walk(experiment, "exact", constants(experiment).cap, 5, 1, no_tick)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sigma": 0.0}, "sigma = 0.0 is not allowed; it should be greater than 0"),
        ({"curvatures": (1.0, -2.0)}, "curvatures.1 = -2.0 is not allowed; it should be greater than 0"),
        ({"groups": 0}, "groups = 0 is not allowed"),
    ],
)
def test_bad_settings_are_one_clear_line(changes, words):
    with pytest.raises(ConfigError) as error:
        preset(**changes)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_bad_lengths_are_one_clear_line():
    with pytest.raises(ConfigError, match="T = -1 is not allowed"):
        constants(preset()).eta(-1)
    with pytest.raises(ConfigError, match="doublings = 0 is not allowed"):
        series(0)


@pytest.fixture
def command(monkeypatch, capsys):
    """The command line in this process: exit code, output, errors."""

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["cobo", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, *capsys.readouterr()

    return call


@pytest.mark.slow
def test_the_command_writes_its_files_and_does_not_overwrite_them(tmp_path, command):
    arguments = ("theory", "--seeds", "2", "--doublings", "2", "--out", str(tmp_path))
    code, out, err = command(*arguments)
    assert code == 0, err
    assert "M^2 in (0, 1/5)" in out
    results = json.loads((tmp_path / "theory.json").read_text())
    assert set(results["series"]) == {"exact", "stochastic", "algorithm-1"}
    for line in results["series"]["exact"]:
        assert line["capped"]
        assert line["inside"] == 1.0
        assert all(line[name]["measured"] < line[name]["corrected"] for name in ("consensus", "gradient", "client"))
    assert [line["T"] for line in results["series"]["exact"]] == [4, 8, 16]
    assert [row["M2"] for row in results["curvatures"]] == pytest.approx([0, 1 / 36, (1.6 / 3.6) ** 2])
    assert results["curvatures"][0]["consensus"]["printed"] == 0 < results["curvatures"][0]["consensus"]["measured"]
    assert all(line["right"] == 1 for line in results["from_the_middle"])
    assert results["noise_free"]["distance"] < 1e-12
    assert "| 4* |" in (tmp_path / "table.md").read_text()
    for name in ("theory", "figure1"):
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        drawn = (tmp_path / "figures" / f"{name}.svg").read_bytes()
        assert len(drawn) > 10_000
        (tmp_path / "figures" / f"{name}.svg").unlink()
        assert command("figure", name, str(tmp_path))[0] == 0
        assert (tmp_path / "figures" / f"{name}.svg").read_bytes() == drawn
    code, _, err = command(*arguments)
    assert code == 2
    assert err.count("\n") == 1
    assert "choose another --out" in err


def test_the_experiment_runs_like_any_other(tmp_path, command):
    arguments = ("--methods", "local,fedavg,cobo,oracle", "--rounds", "40", "--set", "evaluate_every=40")
    code, out, err = command("compare", "quadratic", *arguments, "--out", str(tmp_path))
    assert code == 0, err
    assert "quadratic" in out
    methods = json.loads((tmp_path / "results.json").read_text())["methods"]
    assert all(found["accuracy"] is None for found in methods.values())
    assert methods["cobo"]["weights_error"] == 0
    assert methods["cobo"]["loss"]["mean"] < methods["fedavg"]["loss"]["mean"] / 3
