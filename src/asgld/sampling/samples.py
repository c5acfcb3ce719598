"""The result of `asgld.sample`: the draws, and a verdict that a person can act on."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_flatten_with_path, tree_map

from asgld.oracle.forms import Form
from asgld.sampling import diagnosis, pictures

FloatArray = npt.NDArray[np.float64]

# Limits of the verdict.
LARGEST_RHAT, LEAST_ESS, LARGEST_BIAS = 1.01, 400.0, 0.05
# Where a bias must be larger than this part of an sd to show, the spread was not checked. On normal
# densities, regressions and skewed ones 1,000 draws of 4 chains show 0.2 to 0.49.
_LARGEST_UNSEEN = 0.5
# Curvature that changes by more than this factor along the chains wants other coordinates.
_UNEVEN = 10.0
_SHOWN = 6
# One whose average is off by this, an sd of 3 %, is named if it is beyond three errors.
_AVERAGE = 0.06
# A configurational temperature that is off by more belongs to no draws.
_RUNAWAY = 100.0


@dataclass(frozen=True, eq=False)
class StepCheck:
    """The bias of the finite step, from chains of half the step; arrays have one entry per
    coordinate, in units of the sd.

    ==========  ===================================================================
    field       meaning
    ==========  ===================================================================
    mean, sd    estimated bias of the mean and of the sd at the step that was used
    mean_error  standard errors of these
    sd_error    (the same)
    ==========  ===================================================================
    """

    mean: FloatArray
    sd: FloatArray
    mean_error: FloatArray
    sd_error: FloatArray

    def clearest(self) -> tuple[float, str] | None:
        """The largest bias that chance does not explain, and of what; None if there is none."""
        found = []
        for bias, error, of in (
            (self.mean, self.mean_error, "mean"),
            (self.sd, self.sd_error, "sd"),
        ):
            beyond = np.abs(bias) - _errors(len(bias)) * error
            worst = int(np.nanargmax(beyond)) if np.isfinite(beyond).any() else 0
            if beyond[worst] > 0:
                found.append((float(bias[worst]), of))
        return max(found, key=lambda one: abs(one[0]), default=None)

    @property
    def visible(self) -> float:
        """The bias of a typical coordinate that would show."""
        return _errors(len(self.mean)) * float(np.nanmedian(self.sd_error))

    def blindest(self) -> tuple[float, int]:
        """The bias of the sd that would show in the coordinate where least shows, and which."""
        errors = np.nan_to_num(self.sd_error, nan=np.inf)
        worst = int(np.argmax(errors))
        return _errors(len(errors)) * float(errors[worst]), worst


def _errors(dim: int) -> float:
    """Standard errors that the worst of `dim` normal numbers exceeds about once in 1,000."""
    return math.sqrt(2.0 * math.log(1000.0 * dim))


@dataclass(eq=False)
class Samples:
    """Draws of `asgld.sample`. ``print(samples)`` gives the verdict.

    ==================  =================================================================
    field               meaning
    ==================  =================================================================
    draws               (chains, draws, d): a NumPy array, or a memmap with `folder=`. Rows of a
                        chain that left the domain are nan from there on
    lr                  the step size, in units of the inverse curvature at the mode
    mode                the point around which the metric was measured
    temperatures        (d,): configurational temperatures E[u dU/du] along the directions u of
                        the metric; 1 if the spread is right, 1.2 if it is about 10 % too wide
    temperature_errors  (d,): their standard errors
    curvature           the largest curvature that was met, in units of that at the mode; nan where
                        the metric is no matrix
    noise_share         the largest part of the spread that batches would add, uncorrected; None
                        for full gradients
    step_check          the bias of the finite step, or None
    gamma_part          PSGLD: size of the left out term, as a part of the drift
    gradients           gradient-equivalents spent by all chains, with all measurements
    sampling_gradients  those of the steps after burn-in
    messages            one text per chain that stopped early, by its number
    settings            the arguments and what was measured for those left open
    notes               remarks
    ==================  =================================================================
    """

    draws: FloatArray
    form: Form
    lr: float
    mode: FloatArray
    temperatures: FloatArray
    temperature_errors: FloatArray
    curvature: float
    noise_share: float | None
    step_check: StepCheck | None
    gamma_part: float | None
    gradients: float
    sampling_gradients: float
    messages: dict[int, str]
    settings: dict[str, Any]
    notes: dict[str, str] = field(default_factory=dict)

    # -------------------------------------------------------------------------------- numbers

    @cached_property
    def whole(self) -> FloatArray:
        """The draws of the chains that came to their end."""
        if not self.messages:
            return self.draws
        return self.draws[[c for c in range(len(self.draws)) if c not in self.messages]]

    @cached_property
    def mean(self) -> FloatArray:
        return self._over_draws(lambda rows: rows.mean(0))

    @cached_property
    def sd(self) -> FloatArray:
        return self._over_draws(lambda rows: rows.std(0, ddof=1))

    def _over_draws(self, statistic: Any) -> FloatArray:
        """A statistic of each coordinate, over chains and draws."""
        rows = self.whole.reshape(-1, self.whole.shape[-1])
        result: FloatArray = statistic(rows) if len(rows) else np.full(rows.shape[1], np.nan)
        return result

    @cached_property
    def rhat(self) -> FloatArray:
        """Split R-hat of each coordinate, rank-normalized."""
        return diagnosis.rhat(self.whole)

    @cached_property
    def ess_bulk(self) -> FloatArray:
        """Effective number of draws in the bulk, of each coordinate."""
        return diagnosis.ess_bulk(self.whole)

    @cached_property
    def ess_tail(self) -> FloatArray:
        """Effective number of draws in the tails, of each coordinate."""
        return diagnosis.ess_tail(self.whole)

    @cached_property
    def names(self) -> list[str]:
        """A name of each coordinate: the path in the user's x, and the place in the array."""
        names = []
        for word, leaf in _arrays(self.form.to_user(torch.zeros(self.form.dim))):
            for place in np.ndindex(*leaf.shape):
                names.append(f"{word}[{', '.join(map(str, place))}]" if place else word)
        return names

    # -------------------------------------------------------------------------------- forms

    def to_user(self) -> Any:
        """The draws in the form of x0, each array with leading axes (chains, draws)."""
        chains, count, dim = self.draws.shape
        rows = self.form.rows_to_user(torch.from_numpy(np.array(self.draws).reshape(-1, dim)))
        return tree_map(lambda leaf: leaf.reshape(chains, count, *leaf.shape[1:]), rows)

    def to_arviz(self) -> Any:
        """The draws for arviz (the extra `arviz`): one variable per array of x0."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # arviz announces its next release at import
                import arviz
        except ImportError as error:
            raise ImportError(
                f"{error}: to_arviz needs arviz: pip install 'asgld[arviz]', or '.[arviz]' in a "
                "clone"
            ) from error
        kept = [c for c in range(len(self.draws)) if c not in self.messages]
        variables = {word: leaf[kept] for word, leaf in _arrays(self.to_user())}
        if int(arviz.__version__.split(".")[0]) >= 1:
            return arviz.from_dict({"posterior": variables})
        return arviz.from_dict(posterior=variables)

    def plot_trace(self) -> Any:
        """A figure of the traces of the coordinates with the largest R-hat."""
        return pictures.plot_trace(*self._worst())

    def plot_ranks(self) -> Any:
        """A figure of the ranks of the draws of each chain, for the same coordinates."""
        return pictures.plot_ranks(*self._worst())

    def _worst(self) -> tuple[FloatArray, list[str]]:
        order = np.argsort(-np.nan_to_num(self.rhat, nan=np.inf), kind="stable")[:_SHOWN]
        order = np.sort(order)
        return np.asarray(self.whole[:, :, order]), [self.names[i] for i in order]

    # -------------------------------------------------------------------------------- verdict

    @cached_property
    def findings(self) -> list[str]:
        """What is wrong, each with what to do; empty if nothing was found."""
        found = [*self._lost_chains()]
        if not len(self.whole):
            return found
        found += self._mixing()
        found += self._spread()
        return found or self._unchecked()

    @property
    def is_mixed(self) -> bool:
        """Whether R-hat and the effective numbers of draws are as they should be."""
        return len(self.whole) > 0 and not self._mixing()

    def _lost_chains(self) -> list[str]:
        if not self.messages:
            return []
        number, text = min(self.messages.items())
        return [
            f"{len(self.messages)} of {len(self.draws)} chains stopped early and are left out "
            f"(chain {number}: {text}); halve lr={self.lr:.3g}, or sample log(x) in place of x > 0"
        ]

    def _mixing(self) -> list[str]:
        if self.whole.shape[1] < 4:
            return [f"{self.whole.shape[1]} draws of each chain are too few to judge: raise draws"]
        if len(self.whole) == 1:
            return ["one chain cannot tell whether it has mixed: use chains=4 or more"]
        worst = int(np.nanargmax(np.nan_to_num(self.rhat, nan=np.inf)))
        rhat, name = float(self.rhat[worst]), self.names[worst]
        if not rhat <= LARGEST_RHAT:
            if (gap := self._gap(worst)) > 3.0:
                return [
                    f"chains are apart: R-hat {rhat:.3g} of {name}, chain means up to {gap:.1f} "
                    "within-chain sd apart. There may be several modes, which these draws do not "
                    "weigh; do not average over chains. Look at plot_trace(), sample each mode, or "
                    f"use a method for several modes{self._uneven()}"
                ]
            # With as many digits as it takes to be above the limit.
            shown = next(
                (s for n in range(2, 17) if float(s := f"{rhat:.{n}f}") > LARGEST_RHAT), f"{rhat}"
            )
            return [
                f"not mixed: R-hat {shown} of {name}, more than {LARGEST_RHAT}; draw "
                f"{self._longer(rhat)} times as long (raise thin or draws){self._uneven()}"
            ]
        found = []
        for word, ess in (("bulk", self.ess_bulk), ("tail", self.ess_tail)):
            least = int(np.nanargmin(ess))
            if not ess[least] >= LEAST_ESS:
                factor = math.ceil(LEAST_ESS / max(float(ess[least]), 1.0))
                found.append(
                    f"few effective draws: {ess[least]:.0f} in the {word} of {self.names[least]}, "
                    f"fewer than {LEAST_ESS:.0f}; raise draws, thin or chains {factor} times"
                )
        return found[:1]

    def _uneven(self) -> str:
        """What to do about curvature that changes along the chains."""
        if not self.curvature >= _UNEVEN:
            return ""
        return (
            f". The curvature is up to {self.curvature:.0f} times that at the mode: a scale that "
            "varies by orders of magnitude wants another parametrization"
        )

    def _gap(self, i: int) -> float:
        """The largest distance of two chain means, in sd within chains."""
        column = self.whole[:, :, i]
        inside = math.sqrt(float(column.var(1).mean()))
        return float(np.ptp(column.mean(1))) / max(inside, 1e-300)

    @staticmethod
    def _longer(rhat: float) -> int:
        """R-hat - 1 falls like 1 / length."""
        return math.ceil(min(max((rhat - 1.0) / (LARGEST_RHAT - 1.0), 2.0), 1000.0))

    def _spread(self) -> list[str]:
        found: list[str] = []
        away, errors = self.temperatures - 1.0, self.temperature_errors
        if np.isnan(away).all():  # interrupted: they are known at the end
            return found
        mean, mean_error = float(away.mean()), float(np.sqrt(np.mean(errors**2) / len(errors)))
        beyond = np.abs(away) - _errors(len(away)) * errors
        worst = int(np.nanargmax(np.nan_to_num(beyond, nan=-np.inf)))
        if not np.isfinite(away).all() or np.abs(away).max() > _RUNAWAY:
            found.append(
                "the chains run away, or are far from where they belong: the configurational "
                f"temperature is {np.nanmax(self.temperatures):.3g} in place of 1; divide "
                f"lr={self.lr:.3g} by 4, or raise burn_in"
            )
        elif abs(mean) > _AVERAGE and abs(mean) > 3.0 * mean_error:
            side = "wide" if mean > 0 else "narrow"
            found.append(
                f"wrong spread: the configurational temperature is {1 + mean:.3g} "
                f"+-{mean_error:.2g} on average in place of 1, so sds are about "
                f"{100 * abs(math.sqrt(max(1 + mean, 0.0)) - 1):.0f} % too {side}; "
                f"{self._remedy()}"
            )
        elif beyond[worst] > 2.0 * LARGEST_BIAS:
            change = (math.sqrt(max(self.temperatures[worst], 0.0)) - 1.0) * 100
            side = "wide" if change > 0 else "narrow"
            found.append(
                f"wrong spread: the configurational temperature of a direction is "
                f"{self.temperatures[worst]:.3g} in place of 1, so the sd is about "
                f"{abs(change):.0f} % too {side} there; {self._remedy()}"
            )
        elif self.step_check is not None:
            clearest = self.step_check.clearest()
            if clearest is not None and abs(clearest[0]) > LARGEST_BIAS:
                found.append(
                    f"the step is long: it biases the {clearest[1]} by {abs(clearest[0]):.0%} of "
                    f"an sd; halve lr={self.lr:.3g}"
                )
        share = self.noise_share or 0.0
        if not found and share > 2.0 * LARGEST_BIAS and self.settings["correct"] == "none":
            found.append(f"batches add {share:.0%} to the variance; {self._remedy()}")
        return found

    def _unchecked(self) -> list[str]:
        """Say so where nothing was found, but the bias of the step could not be seen."""
        if self.step_check is not None:
            seen, worst = self.step_check.blindest()
            if seen <= _LARGEST_UNSEEN:
                return []
            why = f"a bias below {seen:.0%} of the sd of {self.names[worst]} would not show"
            remedy = "raise draws; heavy tails want another parametrization"
        elif self.settings["step_check"]:
            why = self.notes.get("stop") or self.notes["step"]
            remedy = "raise draws"
        else:
            why, remedy = "step_check=False", "leave that out"
        return [f"mixed; the spread could not be checked ({why}): {remedy}"]

    def _remedy(self) -> str:
        if self.noise_share is not None and self.settings["correct"] not in ("both", "noise"):
            return "correct='auto' takes out the noise of the batches"
        return f"halve lr={self.lr:.3g}"

    def __str__(self) -> str:
        chains, count, dim = self.draws.shape
        rule = self.settings["method"].upper()
        head = f"{chains} chain{'s' * (chains > 1)} of {count} draws in {dim} dimension"
        head += f"{'s' * (dim > 1)}, {rule}"
        lines = [f"{head}, {self.gradients:,.0f} gradient evaluations"]
        if len(self.whole) > 1 and count >= 4:
            lines.append(
                f"R-hat at most {np.nanmax(self.rhat):.4f}; effective draws at least "
                f"{np.nanmin(self.ess_bulk):,.0f} (bulk), {np.nanmin(self.ess_tail):,.0f} (tail)"
            )
        heat, error = self.temperatures.mean(), np.sqrt(np.mean(self.temperature_errors**2))
        lines.append(
            f"configurational temperature {heat:.4g} on average (1 is right), +-{error:.2g} for "
            "one direction"
        )
        if self.step_check is not None:
            clearest, seen = self.step_check.clearest(), self.step_check.visible
            text = f"no bias seen; one of {seen:.0%} of an sd would show"
            if clearest is not None:
                text = f"bias of the {clearest[1]} up to {clearest[0]:+.1%} of an sd"
            lines.append(f"finite step, by chains of half the step: {text}")
        if self.noise_share is not None:
            done = {"both": "corrected", "noise": "corrected", "none": "not corrected"}
            word = done.get(self.settings["correct"], "after control variates")
            lines.append(f"batches: {self.noise_share:.0%} of the variance, {word}")
        if self.gamma_part is not None:
            lines.append(
                f"PSGLD leaves out the term Gamma, here about {self.gamma_part:.1%} of the drift"
            )
        lines += [f"note: {text}" for text in self.notes.values()]
        if self.findings:
            lines += [f"VERDICT: {text}" for text in self.findings]
        else:
            lines.append("VERDICT: mixed, and no sign of a wrong spread")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Samples {self.draws.shape}: {'; '.join(self.findings) or 'mixed'}>"


def _arrays(tree: Any) -> list[tuple[str, npt.NDArray[Any]]]:
    """The arrays of a structure, each with its path as a name; "x" for a single array."""
    found = []
    for path, leaf in tree_flatten_with_path(tree)[0]:
        word = ".".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path) or "x"
        found.append((word, torch.as_tensor(leaf).numpy(force=True)))
    return found
