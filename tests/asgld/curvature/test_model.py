"""The matrix-free Hessian of a model, and the constants measured on models and oracles."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from quadratic import Quadratic, normal
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

from asgld.curvature import (
    Estimate,
    Kind,
    ModelHessian,
    classify,
    gradient_scale,
    gradient_variance,
    lambda_max,
    lambda_min,
    largest_curvature,
)

INPUTS, LABELS = normal(23, 4), torch.arange(23) % 3
LOADER = DataLoader(TensorDataset(INPUTS, LABELS), batch_size=10)  # 10, 10 and 3 samples


def network(seed: int = 0, *extra: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 5), *extra, nn.Tanh(), nn.Linear(5, 3)).double()


def dense_hessian(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Tensor:
    """Hessian of a loss of all the data at once, by nested differentiation."""
    gradients = torch.autograd.grad(loss(model), list(model.parameters()), create_graph=True)
    flat = torch.cat([g.reshape(-1) for g in gradients])
    rows = [
        torch.autograd.grad(
            entry, list(model.parameters()), retain_graph=True, materialize_grads=True
        )
        for entry in flat
    ]
    return torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in rows])


def mean_loss(model: nn.Module) -> Tensor:
    return cross_entropy(model(INPUTS), LABELS)


def test_model_hessian_equals_the_dense_one_with_uneven_batches() -> None:
    model = network()
    truth = dense_hessian(model, mean_loss)
    h = ModelHessian(model, cross_entropy, LOADER)
    assert h.shape == tuple(truth.shape)
    products = torch.stack([h @ e for e in torch.eye(h.dim).double()])
    assert torch.allclose(products, truth, atol=1e-12)
    assert float(h.value(h.x)) == pytest.approx(mean_loss(model).item(), abs=1e-14)
    gradient = torch.autograd.grad(mean_loss(model), list(model.parameters()))
    assert torch.allclose(h.grad(h.x), torch.cat([g.reshape(-1) for g in gradient]), atol=1e-14)
    eigenvalues = torch.linalg.eigvalsh(truth)
    for dense_below in (128, 0):
        low, high = lambda_min(h, dense_below=dense_below), lambda_max(h, dense_below=dense_below)
        assert low.value == pytest.approx(float(eigenvalues[0]), abs=1e-6)
        assert high.value == pytest.approx(float(eigenvalues[-1]), abs=1e-6)
        assert low.lower <= float(eigenvalues[0]) + 1e-12


def test_model_hessian_is_a_function_of_any_point() -> None:
    model, other = network(0), network(1)
    h, k = (ModelHessian(m, cross_entropy, LOADER) for m in (model, other))
    v = normal(h.dim)
    assert torch.equal(h.hvp(k.x, v), k @ v)
    assert torch.equal(h.value(k.x), k.value(k.x))


def test_model_hessian_reduces_and_decays_as_told() -> None:
    model = network()
    h = ModelHessian(model, cross_entropy, LOADER)
    summed = ModelHessian(
        model, lambda out, y: cross_entropy(out, y, reduction="sum"), LOADER, reduction="sum"
    )
    decayed = ModelHessian(model, cross_entropy, LOADER, weight_decay=0.3)
    v = normal(h.dim)
    assert torch.allclose(summed @ v, h @ v, atol=1e-13)
    assert torch.allclose(decayed @ v, h @ v + 0.3 * v, atol=1e-13)
    assert torch.allclose(decayed.grad(h.x), h.grad(h.x) + 0.3 * h.x, atol=1e-13)
    difference = float(decayed.value(h.x) - h.value(h.x))
    assert difference == pytest.approx(0.15 * float(h.x @ h.x))


def test_model_hessian_of_some_parameters_is_a_block() -> None:
    model = network()
    truth = dense_hessian(model, mean_loss)
    weight = model.get_parameter("2.weight")
    for chosen in (["2.weight"], [weight]):
        h = ModelHessian(model, cross_entropy, LOADER, chosen)
        assert h.dim == 15
        block = torch.stack([h @ e for e in torch.eye(15).double()])
        assert torch.allclose(block, truth[25:40, 25:40], atol=1e-12)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is weight)
    assert ModelHessian(model, cross_entropy, LOADER).dim == 15


def test_model_hessian_leaves_the_model_alone() -> None:
    model = network(0, nn.BatchNorm1d(5), nn.Dropout(0.5))
    model[1].eval()
    for i, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, float(i))
    before = copy.deepcopy(model.state_dict())
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    flags = [m.training for m in model.modules()]
    h = ModelHessian(model, cross_entropy, LOADER)
    h.value(h.x)
    h.grad(h.x)
    h @ normal(h.dim)
    list(h.sample_grads(h.x, (INPUTS, LABELS)))
    assert [m.training for m in model.modules()] == flags
    model[2] = nn.Identity()  # no dropout, so that training mode is allowed
    t = ModelHessian(model, cross_entropy, LOADER, train=True)
    t.grad(t.x)
    t @ normal(t.dim)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, grad)
    assert [m.training for m in model.modules()] == flags


def test_model_hessian_uses_batch_statistics_in_training_mode() -> None:
    model = network(0, nn.BatchNorm1d(5))
    whole = [(INPUTS, LABELS)]
    trained = ModelHessian(model, cross_entropy, whole, train=True)
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    truth = dense_hessian(model.train(), mean_loss)
    model.load_state_dict(buffers, strict=False)
    v = normal(trained.dim)
    assert torch.allclose(trained @ v, truth @ v, atol=1e-11)
    assert not torch.allclose(ModelHessian(model, cross_entropy, whole) @ v, truth @ v, atol=1e-3)


def test_model_hessian_refuses_random_models() -> None:
    model = network(0, nn.Dropout(0.5))
    ModelHessian(model, cross_entropy, LOADER)
    with pytest.raises(ValueError, match="dropout"):
        ModelHessian(model, cross_entropy, LOADER, train=True)


def test_model_hessian_shares_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Linear(4, 4).double()
            self.decode = nn.Linear(4, 4).double()
            self.decode.weight = self.encode.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.decode(torch.tanh(self.encode(x)))

    model = Tied()
    h = ModelHessian(model, mse_loss, [(INPUTS, INPUTS)])
    assert h.dim == 24
    truth = dense_hessian(model, lambda m: mse_loss(m(INPUTS), INPUTS))
    assert torch.allclose(h @ normal(24), truth @ normal(24), atol=1e-11)


def test_model_hessian_differentiates_attention_twice() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).double()
    tokens = normal(6, 5, 4)
    h = ModelHessian(model, mse_loss, [(tokens, tokens)])
    v, u = normal(h.dim, seed=1), normal(h.dim, seed=2)
    step = 1e-5
    difference = (h.grad(h.x + step * v) - h.grad(h.x - step * v)) / (2 * step)
    assert torch.allclose(h @ v, difference, atol=1e-7)
    assert float(u @ (h @ v)) == pytest.approx(float(v @ (h @ u)), rel=1e-10)


def test_model_hessian_takes_batches_of_any_structure() -> None:
    class Scorer(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return self.inner(batch["inputs"])

    model = network()
    batches = [{"inputs": x, "labels": y, "name": "a batch"} for x, y in LOADER]
    h = ModelHessian(Scorer(model), lambda out, b: cross_entropy(out, b["labels"]), batches)
    pairs = ModelHessian(model, cross_entropy, LOADER)
    v = normal(h.dim)
    assert torch.equal(h @ v, pairs @ v)


def test_model_hessian_of_a_linear_loss_is_zero() -> None:
    h = ModelHessian(nn.Linear(4, 1).double(), lambda out, _: out.mean(), LOADER)
    assert torch.equal(h @ normal(5), torch.zeros(5).double())


def test_model_hessian_works_in_half_of_the_memory() -> None:
    double = network()
    h = ModelHessian(double, cross_entropy, LOADER)
    single = ModelHessian(
        copy.deepcopy(double).float(), cross_entropy, [(x.float(), y) for x, y in LOADER]
    )
    assert single.dtype == torch.float32
    end = lambda_min(single, dense_below=0, confidence=0.99)
    truth = lambda_min(h)
    assert end.vector.dtype == torch.float32
    assert end.value == pytest.approx(truth.value, abs=1e-4)
    assert end.lower <= truth.value <= end.upper


def test_classify_follows_the_training_of_a_model() -> None:
    # At zero weights, with the output bias at the log frequencies, a network has a strict saddle.
    model = network()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    frequencies = torch.bincount(LABELS).double() / len(LABELS)
    with torch.no_grad():
        model[2].bias.copy_(frequencies.log() - frequencies.log().mean())
    h = ModelHessian(model, cross_entropy, [(INPUTS, LABELS)], weight_decay=0.02)
    with torch.no_grad():  # the decay moves the bias a little
        for _ in range(200):
            x = h.x - 0.5 * h.grad(h.x)
            nn.utils.vector_to_parameters(x, model.parameters())
    point = classify(h, h.x, eps=1e-6, gamma=1e-3)
    assert point.kind is Kind.STRICT_SADDLE, str(point)
    values = [float(h.value(h.x))]
    # Descent ends at saddles, also after the first; the direction found leads on from each.
    while point.kind is Kind.STRICT_SADDLE and len(values) < 10:
        assert point.direction is not None
        nn.utils.vector_to_parameters(h.x + 0.1 * point.direction, model.parameters())
        descend(h)
        values.append(float(h.value(h.x)))
        point = classify(h, h.x, eps=1e-4, gamma=1e-3)
    assert point.kind is Kind.MINIMUM, str(point)
    assert values == sorted(values, reverse=True)
    assert classify(h, h.x, eps=1e-4, gamma=1e-3, dense_below=0).kind is Kind.MINIMUM


def descend(h: ModelHessian) -> None:
    """Move the model to a critical point of its loss."""
    parameters = list(h.model.parameters())
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=1000, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        pieces = h.grad(h.x).split([p.numel() for p in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.reshape(parameter.shape).clone()
        return float(h.value(h.x))

    optimizer.step(closure)


def one_shot() -> Iterator[tuple[Tensor, Tensor]]:
    yield INPUTS, LABELS


@pytest.mark.parametrize(
    ("loss", "loader", "options", "error", "message"),
    [
        (cross_entropy, one_shot(), {}, TypeError, "read once only"),
        (cross_entropy, [], {}, ValueError, "no batches"),
        (
            cross_entropy,
            LOADER,
            {"params": ["3.weight"]},
            ValueError,
            "'3.weight': the model has 0.w",
        ),
        (
            cross_entropy,
            LOADER,
            {"params": [nn.Parameter(INPUTS)]},
            ValueError,
            "not of this model",
        ),
        (cross_entropy, LOADER, {"params": []}, ValueError, "no parameters"),
        (cross_entropy, LOADER, {"weight_decay": -1.0}, ValueError, "weight_decay=-1.0"),
        (cross_entropy, LOADER, {"reduction": "none"}, ValueError, "reduction='none'"),
        (lambda out, y: out, LOADER, {}, ValueError, r"loss_fn returned \(10, 3\)"),
        (lambda out, y: 1.0, LOADER, {}, ValueError, "loss_fn returned float"),
    ],
)
def test_model_hessian_errors(
    loss: Any, loader: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ModelHessian(network(), loss, loader, **options)


def test_model_hessian_checks_shapes() -> None:
    h = ModelHessian(network(), cross_entropy, LOADER)
    with pytest.raises(ValueError, match=r"v has shape \(3,\): need \(43,\)"):
        h @ torch.ones(3)
    with pytest.raises(ValueError, match=r"x has shape \(1, 43\)"):
        h.value(torch.ones(1, 43))


@pytest.mark.gpu
def test_model_hessian_on_a_gpu_agrees_with_the_cpu() -> None:
    model = network()
    host = ModelHessian(model, cross_entropy, LOADER)
    device = ModelHessian(copy.deepcopy(model).cuda(), cross_entropy, LOADER)
    ends = [lambda_min(h, dense_below=0) for h in (host, device)]
    assert ends[1].vector.is_cuda
    assert ends[0].value == pytest.approx(ends[1].value, abs=1e-9)
    verdicts = [classify(h, h.x, eps=10.0, gamma=1e-3) for h in (host, device)]
    assert verdicts[0].kind is verdicts[1].kind


# --------------------------------------------------------------------------------------- constants


class Regression:
    """A finite sum with the interface of a problem: f_i = (a_i'x - b_i)^2 / 2."""

    def __init__(self, count: int, dim: int, noise: float = 0.3) -> None:
        self.rows = normal(count, dim, seed=1)
        self.targets = self.rows.sum(1) + noise * normal(count, seed=2)
        self.num_samples, self.dim = count, dim

    def grad(self, x: Tensor) -> Tensor:
        return self.sample_grad(x, torch.arange(self.num_samples))

    def sample_grad(self, x: Tensor, indices: Tensor) -> Tensor:
        rows = self.rows[indices]
        errors = (rows * x.unsqueeze(-2)).sum(-1) - self.targets[indices]
        return (errors.unsqueeze(-1) * rows).mean(-2)

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        return (self.rows @ v) @ self.rows / self.num_samples


def test_largest_curvature_is_the_norm_of_the_hessian() -> None:
    for values in ([-3.0, 1.0, 2.0], [-1.0, 0.0, 2.0], [0.5, 0.6, 0.7]):
        eigenvalues = torch.tensor(values, dtype=torch.float64).repeat(60)
        f = Quadratic(eigenvalues, normal(2, 180))
        truth = max(map(abs, values))
        estimate = largest_curvature(f, torch.zeros(180))
        assert estimate.lower - 1e-12 <= truth <= estimate.upper
        assert estimate.upper - estimate.lower <= 0.01 * truth
        assert estimate.confidence == 0.999
        assert largest_curvature(torch.diag(eigenvalues[:6])).value == pytest.approx(truth)


def test_largest_curvature_of_a_model() -> None:
    model = network()
    norm = torch.linalg.matrix_norm(dense_hessian(model, mean_loss), 2)
    h = ModelHessian(model, cross_entropy, LOADER)
    for estimate in (largest_curvature(h, dense_below=0), largest_curvature(h, h.x)):
        assert estimate.value == pytest.approx(float(norm), rel=1e-3)


def test_gradient_variance_of_all_samples_is_exact() -> None:
    f = Regression(50, 6)
    x = normal(6, seed=9)
    rows = torch.stack([f.sample_grad(x, torch.tensor([i])) for i in range(50)])
    truth = float((rows - rows.mean(0)).square().sum(1).mean())
    estimate = gradient_variance(f, x)
    assert estimate.value == pytest.approx(truth)
    assert (estimate.lower, estimate.upper, estimate.confidence) == (
        estimate.value,
        estimate.value,
        1.0,
    )


def test_gradient_variance_of_a_model_agrees_with_single_batches() -> None:
    h = ModelHessian(network(), cross_entropy, LOADER, weight_decay=0.1)
    ones = [
        ModelHessian(h.model, cross_entropy, [(x[None], y[None])], weight_decay=0.1).grad(h.x)
        for x, y in zip(INPUTS, LABELS, strict=True)
    ]
    rows = torch.stack(ones)
    by_vmap = torch.cat(list(h.sample_grads(h.x, (INPUTS, LABELS), max_bytes=43 * 8 * 5)))
    assert torch.allclose(by_vmap, rows, atol=1e-13)
    truth = float((rows - rows.mean(0)).square().sum(1).mean())
    assert gradient_variance(h).value == pytest.approx(truth)


def test_gradient_variance_needs_no_vmap() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            if float(x.detach().sum()) > 1e9:  # depends on data, which vmap refuses
                return self.inner(-x)
            return self.inner(x)

    model = Branching()
    h = ModelHessian(model, cross_entropy, LOADER)
    plain = ModelHessian(model.inner, cross_entropy, LOADER)
    assert gradient_variance(h).value == pytest.approx(gradient_variance(plain).value)


def test_gradient_variance_intervals_cover_the_truth() -> None:
    # Null: intervals of nominal confidence 0.95 from 200 of 5,000 samples cover the exact value.
    # The squared deviations are skewed, so the normal interval covers somewhat less: 0.9 is asked
    # for, with 300 repetitions and five standard deviations.
    f = Regression(5000, 5)
    x = normal(5, seed=9)
    truth = gradient_variance(f, x).value
    count, covered = 300, 0
    for seed in range(count):
        estimate = gradient_variance(f, x, num_samples=200, seed=seed)
        covered += estimate.lower <= truth <= estimate.upper
    assert covered / count >= 0.9 - 5 * math.sqrt(0.9 * 0.1 / count)
    assert covered < count


def test_gradient_variance_from_batches_agrees_with_samples() -> None:
    inputs, labels = normal(2000, 4, seed=3), (3 * normal(2000)).long().abs() % 3
    batches = [(inputs[i : i + 10], labels[i : i + 10]) for i in range(0, 2000, 10)]
    h = ModelHessian(network(), cross_entropy, batches)
    exact = gradient_variance(h).value
    # Null: 200 batches estimate the variance without bias; five standard errors.
    cheap = gradient_variance(h, method="batches", confidence=1 - 5.7e-7)
    assert cheap.lower <= exact <= cheap.upper
    assert cheap.upper - cheap.lower < exact
    partial = gradient_variance(h, num_samples=500, confidence=1 - 5.7e-7)
    assert partial.lower <= exact <= partial.upper
    assert partial.how == "500 samples"


def test_gradient_scale_is_the_size_of_a_coordinate() -> None:
    f = Regression(40, 6)
    x = normal(6, seed=9)
    rows = torch.stack([f.sample_grad(x, torch.tensor([i])) for i in range(40)])
    assert gradient_scale(f, x).value == pytest.approx(float(rows.square().mean().sqrt()))
    full = gradient_scale(f, x, batch_size=10**12).value
    assert full == pytest.approx(float(f.grad(x).square().mean().sqrt()))
    deterministic = gradient_scale(lambda y: (y**2).sum(), torch.ones(4))
    assert (deterministic.value, deterministic.how) == (2.0, "full gradient")


def test_constants_scale_with_the_loss() -> None:
    model = network()
    once = ModelHessian(model, cross_entropy, LOADER)
    twice = ModelHessian(model, lambda out, y: 2 * cross_entropy(out, y), LOADER)
    for measure, factor in ((largest_curvature, 2), (gradient_variance, 4), (gradient_scale, 2)):
        assert measure(twice).value == pytest.approx(factor * measure(once).value)


def test_estimate_reads_as_a_sentence() -> None:
    text = str(Estimate(1.0, 0.9, 1.2, 0.95, "500 samples"))
    assert text == "1 in [0.9, 1.2] (confidence 0.95; 500 samples)"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f, x: gradient_variance(f), ValueError, "x=None"),
        (lambda f, x: gradient_variance(f, x, num_samples=1), ValueError, "num_samples=1"),
        (lambda f, x: gradient_variance(f, x, method="some"), ValueError, "method='some'"),
        (
            lambda f, x: gradient_variance(f, x, method="batches"),
            ValueError,
            "method='batches'",
        ),
        (lambda f, x: gradient_variance(f, x[None]), ValueError, r"x has shape \(1, 3\)"),
        (
            lambda f, x: gradient_variance(torch.sum, x),
            TypeError,
            "a full gradient has no variance",
        ),
        (lambda f, x: gradient_variance(Regression(1, 3), x), ValueError, "only 1 samples"),
        (lambda f, x: gradient_scale(f, x, batch_size=0), ValueError, "batch_size=0"),
    ],
)
def test_constants_errors(
    call: Callable[[Any, Tensor], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(Regression(5, 3), torch.zeros(3).double())
