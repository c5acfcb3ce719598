"""Chains of networks: the right posterior, and the same draws on any ranks and after any kill."""

from __future__ import annotations

import functools
import math
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sampling_cases as cases
import torch
from ranks import run_ranks
from torch import Tensor, nn
from torch.multiprocessing import ProcessExitedException
from torch.utils.data import Dataset, TensorDataset

import asgld
from asgld.sampling.networks import posterior_options, sample_network

# Where the order of summation differs: a few units in the last place of float32, over 35 steps
# that contract.
ROUNDING = {"rtol": 1e-5, "atol": 1e-6}

# ----------------------------------------------------------------------------------------------
# The posterior
# ----------------------------------------------------------------------------------------------

N, COPIES, PRIOR_SD = 200, 20, 0.2


def regression() -> tuple[Tensor, Tensor]:
    """The same inputs with noise of its own for each of 20 targets: 20 regressions in one layer,
    whose weights all have the same posterior spread."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(N, COPIES, generator=generator, dtype=torch.float64)
    return x, x @ torch.tensor([[1.0], [-2.0], [0.5]]).double() + noise


def half_squares(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square().sum(1).mean() / 2


@functools.cache
def posterior_of(method: str, correct: bool) -> tuple[Any, np.ndarray, np.ndarray, float]:
    """Return a chain, the spread of each column of weights in units of the truth, the distance of
    their means in standard deviations, and the noise share by the formula."""
    temperature, lr = {"sgld": (1.0, 0.1), "psgld": (0.5, 0.01)}[method]
    x, y = regression()
    model = nn.Linear(3, COPIES).double()
    torch.nn.init.zeros_(model.weight)
    samples = sample_network(
        model, data=(x, y), loss=half_squares, lr=lr, method=method, prior_sd=PRIOR_SD,
        temperature=temperature, batch_size=20, draws=100, burn_in=600, thin=20, correct=correct,
    ).collect()  # fmt: skip
    full = torch.cat([x, torch.ones(N, 1)], 1)
    precision = full.T @ full + torch.eye(4) / PRIOR_SD**2
    mean = torch.linalg.solve(precision, full.T @ y).T
    sd = (temperature * torch.linalg.inv(precision)).diag().sqrt()
    draws = np.concatenate([samples.draws["weight"], samples.draws["bias"][..., None]], 2)
    z = (draws - mean.numpy()) / sd.numpy()
    residual = full @ mean.T - y
    share = lr * (full[:, :3, None] * residual[:, None]).var(0).mean() / 20 / (2 * temperature / N)
    return samples, np.sqrt((z**2).mean((0, 1))), z.mean((0, 1)), float(share)


@pytest.mark.parametrize("method", ["sgld", "psgld"])
def test_spread_is_that_of_the_posterior(method: str) -> None:
    """Null: 100 draws of 20 weights per column, nearly independent, so the standard error of a
    spread is 1 / sqrt(2 * 2000) = 1.6 %. 10 % are for the size of the step (lr times curvature / 4
    = 3 %) and for one level of noise per parameter."""
    _, spread, shift, _ = posterior_of(method, True)
    assert np.abs(spread - 1).max() < 0.1 + 3 * 0.016
    assert np.abs(shift).max() < 5 / math.sqrt(2000) + 0.05


@pytest.mark.parametrize("method", ["sgld", "psgld"])
def test_spread_is_too_wide_without_the_correction(method: str) -> None:
    samples, spread, _, _ = posterior_of(method, False)
    assert min(samples.noise_share.values()) > 0.3
    right = posterior_of(method, True)[1]
    expected = np.sqrt(1 + np.array([*samples.noise_share.values()]))[[0, 0, 0, 1]]
    assert spread.min() > 1.12
    assert spread / right == pytest.approx(expected, rel=0.1)


def test_share_of_gradient_noise_is_measured() -> None:
    """256 measurements of 60 elements: a standard error below 2 % were they independent."""
    samples, _, _, share = posterior_of("sgld", True)
    assert samples.noise_share["weight"] == pytest.approx(share, rel=0.1)
    assert "corrected" in str(samples)
    assert "too much" not in str(samples)


def test_too_much_gradient_noise_is_not_corrected_but_told() -> None:
    x, y = regression()

    def sample(lr: float) -> Any:
        model = nn.Linear(3, COPIES).double()
        model.weight.data = torch.linalg.lstsq(x, y).solution.T
        nn.init.zeros_(model.bias)
        return sample_network(
            model, data=(x, y), loss=half_squares, lr=lr, batch_size=4, draws=4, burn_in=100, thin=2
        ).collect()

    samples = sample(0.1)
    assert samples.noise_share["weight"] > 0.9
    assert {group["sigma"] for group in samples._chain._optimizer.param_groups} == {N**-0.5}
    lr = float(str(samples).partition("use lr=")[2].split()[0])
    assert max(sample(lr).noise_share.values()) == pytest.approx(0.5, rel=0.2)


def test_posterior_options_are_those_of_sgld() -> None:
    assert posterior_options(100, 2.0, 0.25) == {"sigma": 0.05, "weight_decay": 1 / 400}
    assert posterior_options(4) == {"sigma": 0.5, "weight_decay": 0.0}
    asgld.SGLD([torch.zeros(2, requires_grad=True)], **posterior_options(100, 2.0))
    for options in ({"num_data": 0}, {"prior_sd": 0.0}, {"temperature": 0.0}):
        name, value = next(iter(options.items()))
        with pytest.raises(ValueError, match=f"{name}={value}: need"):
            posterior_options(**{"num_data": 5, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(("one", "other"), [((0, 0), (0, 1)), ((0, 1), (1, 0)), ((1, 12), (11, 2))])
def test_chains_share_no_noise(one: tuple[int, int], other: tuple[int, int]) -> None:
    """Null: the correlation of 15000 pairs of independent normals has a standard error of
    1 / sqrt(15000). Five of them: a false alarm rate of 6e-7."""

    def noise(seed: int, chain: int) -> np.ndarray:
        model = nn.Linear(3, 5000)
        nn.init.zeros_(model.weight)
        samples = sample_network(
            model, data=(torch.ones(4, 3),), loss=cases.no_loss, lr=0.1, draws=1, burn_in=0,
            thin=1, seed=seed, chain=chain,
        )  # fmt: skip
        return next(samples)["weight"].flatten().numpy()

    correlation = np.corrcoef(noise(*one), noise(*other))[0, 1]
    assert abs(correlation) < 5 / math.sqrt(15000)


# ----------------------------------------------------------------------------------------------
# Ranks
# ----------------------------------------------------------------------------------------------


@functools.cache
def alone(name: str) -> cases.Arrays:
    return cases.outcome(cases.start(cases.Small(), name))


@pytest.fixture(scope="session")
def ranks_of(run_once: Callable[..., Path]) -> Callable[[int], tuple[Path, list[Any]]]:
    """Return the folder and what each rank saw, by world size."""

    def found(world_size: int) -> tuple[Path, list[Any]]:
        name = f"sampled-{world_size}"
        folder = run_once(name, lambda folder: run_ranks(cases.sample_all, world_size, folder))
        paths = [folder / f"rank-{rank}.pt" for rank in range(world_size)]
        return folder, [torch.load(path, weights_only=False) for path in paths]

    return found


@pytest.mark.parametrize(
    ("world_size", "name"), [(size, name) for size in (2, 4) for name in cases.chains(size)]
)
@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_draws_are_those_of_one_process(
    name: str, layout: str, world_size: int, ranks_of: Callable[[int], tuple[Path, list[Any]]]
) -> None:
    """Where noise alone moves the weights, bits are equal."""
    tolerance = {"rtol": 0.0, "atol": 0.0} if name == "noise" else ROUNDING
    truth = alone(name)
    for rank in ranks_of(world_size)[1]:
        seen = rank[f"{layout}-{name}"]
        assert seen.keys() == truth.keys()
        for key, value in truth.items():
            exact = tolerance if key.endswith(("weight", "bias")) else ROUNDING
            np.testing.assert_allclose(seen[key], value, **exact, err_msg=key)


@pytest.mark.parametrize("name", ["sgld", "psgld"])
def test_sharded_chain_goes_on_bit_for_bit(
    name: str, ranks_of: Callable[[int], tuple[Path, list[Any]]]
) -> None:
    for rank in ranks_of(2)[1]:
        for key, value in rank[f"fsdp-{name}"].items():
            assert np.array_equal(rank[f"broken-{name}"][key], value), key


@pytest.mark.parametrize("world_size", [2, 4])
def test_folder_of_several_ranks_goes_on_in_one_process(
    world_size: int, ranks_of: Callable[[int], tuple[Path, list[Any]]]
) -> None:
    folder, _ = ranks_of(world_size)
    samples = cases.start(cases.Small(seed=9), folder=folder / "moved", checkpoint_every=7)
    assert samples.step == 21 or samples.step == samples.settings.steps
    for key, value in cases.outcome(samples).items():
        np.testing.assert_allclose(value, alone("sgld")[key], **ROUNDING, err_msg=key)


def test_all_ranks_hear_of_a_folder_that_cannot_be_written(
    ranks_of: Callable[[int], tuple[Path, list[Any]]],
) -> None:
    for rank in ranks_of(2)[1]:
        assert "Not a directory" in rank["refused"]


# ----------------------------------------------------------------------------------------------
# Folders
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgld", "psgld"])
def test_kill_at_any_write_loses_nothing(name: str, tmp_path: Path) -> None:
    """Four parameters, so that a draw is four writes, and a checkpoint two (file and folder)."""
    folder = tmp_path / "chain"
    for fatal_write in (1, 4, 7, 5, 6, 7):
        with pytest.raises(ProcessExitedException, match="SIGKILL"):
            run_ranks(cases.killed_chain, 1, folder, fatal_write, name)
    samples = cases.start(cases.Small(seed=9), name, folder=folder, checkpoint_every=7)
    assert (samples.step, len(samples)) == (28, 1)
    truth = alone(name)
    first = next(samples)  # one that the dead process made
    for key, value in cases.outcome(samples).items():
        assert np.array_equal(value, truth[key]), key
        if key in first:
            assert np.array_equal(np.load(folder / f"{key}.npy"), value)
            assert torch.equal(first[key], torch.from_numpy(value[0]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lr": 0.01}, r"lr=0.01: the chain in folder=.* has lr=0.02; give the same"),
        ({"seed": 4}, "seed=4: .* has seed=3"),
        ({"draws": 5}, "draws=5: .* has draws=3"),
        ({"batch_size": 8}, "batch_size=8: .* has batch_size=7"),
        ({"prior_sd": None}, "prior_sd=None: .* has prior_sd=1.0"),
    ],
)
def test_other_arguments_do_not_go_on(options: dict[str, Any], text: str, tmp_path: Path) -> None:
    cases.start(cases.Small(), folder=tmp_path)
    model = cases.Small()
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=text):
        cases.start(model, folder=tmp_path, **options)
    assert all(map(torch.equal, before, model.parameters()))


def test_other_data_and_other_models_do_not_go_on(tmp_path: Path) -> None:
    cases.start(cases.Small(), folder=tmp_path)
    x, y = cases.data()
    options = {"loss": cases.mean_loss, "folder": tmp_path, **cases.OPTIONS}
    with pytest.raises(ValueError, match="data='45 samples, hash"):
        sample_network(cases.Small(), data=(x, y + 1), **options)
    wide = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 5))
    with pytest.raises(ValueError, match="parameters="):
        sample_network(wide, data=(x, y), **options)


def test_full_disk_keeps_the_draws(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    folder, (soft, hard) = tmp_path / "chain", resource.getrlimit(resource.RLIMIT_FSIZE)
    wide: dict[str, Any] = {"folder": folder, "draws": 100, "thin": 1, "checkpoint_every": 10}

    def limited(size: int, action: Callable[[], Any]) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            with pytest.raises(OSError, match=r"folder=.*need room for 100 draws.*goes on"):
                action()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    limited(10_000, lambda: cases.start(cases.Small(), **wide))  # no room for 100 draws of 5 x 7
    samples = cases.start(cases.Small(), **wide)
    next(samples)
    limited(10_000, samples.collect)
    count = len(samples)
    assert 10 < count < 100
    truth = cases.start(cases.Small(), draws=100, thin=1).collect().draws
    for name, value in samples.draws.items():
        assert np.array_equal(value, truth[name][:count])
    again = cases.start(cases.Small(), **wide)
    assert 0 < len(again) <= count
    for resumed in (samples, again):  # the same object, and the same call
        for name, value in resumed.collect().draws.items():
            assert np.array_equal(value, truth[name])


def test_finished_chain_is_read(tmp_path: Path) -> None:
    first = cases.outcome(cases.start(cases.Small(), folder=tmp_path))
    model = cases.Small(seed=9)
    again = cases.start(model, folder=tmp_path, checkpoint_every=3)
    assert len(again) == 3
    for key, value in cases.outcome(again).items():
        assert np.array_equal(value, first[key])
        assert key not in again.draws or isinstance(again.draws[key], np.memmap)


# ----------------------------------------------------------------------------------------------
# The result
# ----------------------------------------------------------------------------------------------


def test_draws_are_made_when_they_are_asked_for() -> None:
    model = cases.Small()
    samples = cases.start(model)
    assert (samples.step, len(samples)) == (0, 0)
    first = next(samples)
    assert (samples.step, len(samples)) == (25, 1)
    assert all(torch.equal(first[name], p) for name, p in model.named_parameters())
    assert list(first) == [name for name, _ in model.named_parameters()]
    everything = list(samples)
    assert len(everything) == len(samples) == 3
    assert torch.equal(everything[0]["inner.weight"], first["inner.weight"])
    again = [draw["outer.bias"] for draw in samples]
    assert all(map(torch.equal, again, [draw["outer.bias"] for draw in everything]))
    assert torch.equal(samples[-1]["outer.bias"], everything[2]["outer.bias"])
    with pytest.raises(IndexError, match="draw 3: there are 3 draws"):
        samples[3]


def test_predict_averages_over_draws_and_restores_the_model() -> None:
    model = cases.Small()
    samples = cases.start(model)
    with pytest.raises(ValueError, match="no draws yet"):
        samples.predict(cases.INPUTS)
    samples.collect()
    before = [p.clone() for p in model.parameters()]
    outputs = torch.stack([torch.func.functional_call(model, d, cases.INPUTS) for d in samples])
    found = samples.predict(cases.INPUTS)
    torch.testing.assert_close(found.mean, outputs.mean(0))
    torch.testing.assert_close(found.sd, outputs.std(0))
    chosen = samples.predict(cases.INPUTS, lambda y: y.argmax(-1))
    torch.testing.assert_close(chosen.mean, outputs.argmax(-1).float().mean(0))
    assert all(map(torch.equal, before, model.parameters()))
    assert model.training
    one = cases.start(cases.Small(), draws=1).collect().predict(cases.INPUTS)
    assert one.sd.isnan().all()
    assert not one.mean.isnan().any()


class Rows(Dataset[Any]):
    def __init__(self) -> None:
        self.x, self.y = cases.data()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


def test_data_come_in_many_forms() -> None:
    x, y = cases.data()
    forms: list[Any] = [
        [x, y],
        TensorDataset(x, y),
        Rows(),
        [(a, b) for a, b in zip(x, y, strict=True)],
    ]
    for form in forms:
        samples = sample_network(cases.Small(), data=form, loss=cases.mean_loss, **cases.OPTIONS)
        assert np.array_equal(samples.collect().draws["outer.bias"], alone("sgld")["outer.bias"])
    named = sample_network(
        cases.Small(), data={"x": x, "y": y}, **cases.OPTIONS,
        loss=lambda model, batch: cases.mean_loss(model, (batch["x"], batch["y"])),
    )  # fmt: skip
    assert np.array_equal(named.collect().draws["outer.bias"], alone("sgld")["outer.bias"])


def test_frozen_weights_stay_and_half_precision_is_kept_as_float32(tmp_path: Path) -> None:
    model = cases.Small().bfloat16()
    model.inner.requires_grad_(False)
    frozen = model.inner.weight.clone()
    x, y = (value.bfloat16() for value in cases.data())
    options = {"data": (x, y), "loss": cases.mean_loss, **cases.OPTIONS}
    draws = sample_network(model, folder=tmp_path, **options).collect().draws
    assert draws.keys() == {"outer.weight", "outer.bias"}
    assert draws["outer.weight"].dtype == np.float32
    assert len(np.unique(draws["outer.weight"][:, 0, 0])) == 3
    assert torch.equal(model.inner.weight, frozen)


def test_chain_stops_where_the_loss_is_not_finite() -> None:
    """At step 27, after the first draw. The checks and the ten halves take calls too."""
    calls = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return cases.mean_loss(model, batch) * (math.nan if calls > 2 + 27 + 10 else 1.0)

    model = cases.Small()
    samples = sample_network(model, data=cases.data(), loss=loss, **cases.OPTIONS).collect()
    assert samples.message.startswith("the loss is nan at step 27")
    assert samples.message in str(samples)
    assert len(samples) == len(list(samples)) == 1
    assert np.array_equal(samples.draws["outer.bias"][0], alone("sgld")["outer.bias"][0])
    assert all(p.isfinite().all() for p in model.parameters())


def test_chain_stops_where_the_gradient_is_not_finite() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0]).sum().mul(0).abs().sqrt() + 1.0

    samples = sample_network(cases.Small(), data=cases.data(), loss=loss, **cases.OPTIONS).collect()
    assert samples.message.startswith("the gradient is not finite at step 0")
    assert len(samples) == 0


def test_unsettled_chain_says_so() -> None:
    model = nn.Linear(3, 5)
    nn.init.constant_(model.bias, 50.0)
    options = {**cases.OPTIONS, "draws": 40, "burn_in": 20, "thin": 1, "lr": 1e-3}
    samples = sample_network(model, data=cases.data(), loss=cases.mean_loss, **options).collect()
    assert "not settled: raise burn_in" in str(samples)
    assert "40 of 40 draws, 60 of 60 steps" in str(samples)


def test_progress_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    cases.start(cases.Small(), progress=True).collect()
    assert capsys.readouterr().err.endswith("\rdraw 2 of 3\rdraw 3 of 3\n")


# ----------------------------------------------------------------------------------------------
# What is refused
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"data": None}, "data='NoneType': need tensors with samples"),
        ({"data": (torch.ones(3, 3), torch.ones(4, 5))}, r"data=\[3, 4\]: need .* as many in each"),
        ({"loss": None}, "loss=None: need a function"),
        ({"lr": 0.0}, "lr=0.0: need a positive"),
        ({"temperature": 0.0}, "temperature=0.0: need a positive"),
        ({"prior_sd": -1.0}, "prior_sd=-1.0: need a positive"),
        ({"num_data": 0}, "num_data=0: need"),
        ({"draws": 0}, "draws=0: need a whole number of at least 1"),
        ({"thin": 1.5}, "thin=1.5: need a whole number"),
        ({"burn_in": -1}, "burn_in=-1: need a whole number of at least 0"),
        ({"burn_in": 5}, "burn_in=5: need at least 20 to measure"),
        ({"checkpoint_every": 0}, "checkpoint_every=0: need"),
        ({"method": "adam"}, "method='adam': need 'sgld' or 'psgld'"),
        ({"batch_size": 46}, "batch_size=46: need 1 to 45"),
        ({"batch_size": 1}, "batch_size=1: need at least 2 to measure"),
        ({"draws": 2**31}, r"draws=2147483648: need burn_in \+ draws \* thin"),
        (
            {"loss": lambda m, b: (m(b[0]) - b[1]).square().sum()},
            "twice over, like a sum; need the",
        ),
        ({"loss": lambda m, b: cases.mean_loss(m, b) * math.nan}, "loss: it is nan at the start"),
    ],
)
def test_bad_input_is_refused_before_anything_moves(
    options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    model = cases.Small()
    before = [p.clone() for p in model.parameters()]
    given: dict[str, Any] = {"data": cases.data(), "loss": cases.mean_loss, **cases.OPTIONS}
    with pytest.raises(ValueError, match=text):
        sample_network(model, **{**given, "folder": tmp_path / "chain", **options})
    assert all(map(torch.equal, before, model.parameters()))
    assert not (tmp_path / "chain").exists()


def test_batches_of_one_are_sampled_without_a_measurement() -> None:
    samples = cases.start(cases.Small(), batch_size=1, correct=False).collect()
    assert len(samples) == 3
    assert "gradient noise: not measured" in str(samples)


def test_random_layers_are_refused_and_batch_norm_is_warned_of() -> None:
    x, y = cases.data()
    options = {"data": (x, y), "loss": cases.mean_loss, **cases.OPTIONS}
    dropout = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.1))
    with pytest.raises(ValueError, match=r"'1' has dropout=0.1.*model.eval\(\)"):
        sample_network(dropout, **options)
    assert len(sample_network(dropout.eval(), **options).collect()) == 3
    norm = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    with pytest.warns(UserWarning, match="'1' normalizes by each batch"):
        samples = sample_network(norm, **options)
    assert not norm[1].running_mean.any()  # the checks left it alone
    assert len(samples.collect()) == 3


def test_weight_without_a_gradient_needs_a_prior() -> None:
    model = cases.Small()
    model.spare = nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match="parameter='spare': need a loss that depends on it"):
        cases.start(model, prior_sd=None).collect()
    assert torch.equal(model.inner.weight, cases.Small().inner.weight)
    assert cases.start(model).collect().draws["spare"].std() > 0


def test_lr_is_measured_and_kept(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 40)[:, None]
    model = nn.Linear(1, 1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0]) - batch[1]).square().mean() / 2

    given: Any = {"data": (x, 3 * x), "loss": loss, "draws": 4, "thin": 5, "burn_in": 20}
    first = asgld.sample(model, folder=tmp_path, **given)
    assert first.settings.lr == pytest.approx(0.1, rel=0.01)  # curvatures are 1 and 0.35
    next(first)
    again = asgld.sample(model, folder=tmp_path, **given)  # the model has moved
    assert again.settings.lr == first.settings.lr
    with pytest.raises(TypeError, match="lr is missing"):
        asgld.sample(model, method="psgld", **given)


def test_words_of_functions_are_refused_for_networks() -> None:
    given: Any = {"data": (torch.ones(4, 1),), "loss": lambda model, batch: model(batch[0]).mean()}
    with pytest.raises(ValueError, match="correct='none'"):
        asgld.sample(nn.Linear(1, 1), correct="none", **given)
    with pytest.raises(TypeError, match="chain=0"):
        asgld.sample(nn.Linear(1, 1), chains=4, **given)
