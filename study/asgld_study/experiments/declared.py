"""Every experiment of the reproduction, in the order of the report."""

from __future__ import annotations

from asgld_study.experiments import (
    accumulator,
    escape_law,
    exponents,
    features,
    identities,
    minima,
    paper,
    study_variants,
)
from asgld_study.experiments.declare import Experiment
from asgld_study.paper import table1

EXPERIMENTS = (
    Experiment(
        "study",
        "The simulation study",
        "Two variances of a Gaussian: which of the paper's twelve configurations find them?",
        paper.tasks,
    ),
    Experiment(
        "settings",
        "The study under other settings",
        "Do the comparisons survive another step size and another noise?",
        study_variants.setting_tasks,
    ),
    Experiment(
        "spaces",
        "The study in x instead of log x",
        "What changes if positivity is kept by force, by projection or by reflection?",
        study_variants.space_tasks,
    ),
    Experiment(
        "starts",
        "The start of the accumulator",
        "What does a small positive delta as the start of D do?",
        study_variants.start_tasks,
    ),
    Experiment(
        "lag",
        "One step of lag or two",
        "Does the literal indexing of Algorithm 1 behave differently?",
        study_variants.lag_tasks,
    ),
    Experiment(
        "identities",
        "Special cases",
        "Are SGLD, SGD and ASG members of the family, and is the rule local to coordinates?",
        identities.tasks,
    ),
    Experiment(
        "features",
        "Rare features",
        "Do adaptive steps pay where most features are rare?",
        features.tasks,
    ),
    Experiment(
        "accumulator",
        "Powers of the accumulator",
        "Does D grow like k, and do sums of its powers behave as Lemma 2 says?",
        accumulator.power_tasks,
    ),
    Experiment(
        "terms",
        "The three terms of Theorem 1",
        "Does I1 + I2 + I3 bound the squared gradient?",
        accumulator.term_tasks,
    ),
    Experiment(
        "plateau",
        "The floor of SGLD",
        "How high is the floor at which a constant temperature ends?",
        accumulator.plateau_tasks,
    ),
    Experiment(
        "exponents",
        "Convergence exponents",
        "How fast does the squared gradient fall, for every case of the theorems?",
        exponents.tasks,
    ),
    Experiment(
        "delta",
        "A tiny delta",
        "What if delta is too small to feed the accumulator?",
        exponents.delta_tasks,
    ),
    Experiment(
        "region",
        "Where it converges",
        "For which exponents does the squared gradient keep falling?",
        exponents.region_tasks,
    ),
    Experiment(
        "dimension",
        "Escape against dimension",
        "Is the time to leave a saddle logarithmic in d?",
        escape_law.dimension_tasks,
    ),
    Experiment(
        "escape",
        "Escape against curvature, time and exponents",
        "What does the time to leave a saddle depend on?",
        escape_law.law_tasks,
    ),
    Experiment(
        "noise",
        "Escape by gradient noise alone",
        "Does ASG leave a saddle, and what if its noise misses the direction?",
        escape_law.noise_tasks,
    ),
    Experiment(
        "directions",
        "Several escape directions",
        "Does the adaptive D help to leave along several directions at once?",
        escape_law.direction_tasks,
    ),
    Experiment(
        "front",
        "Escape against accuracy",
        "Which exponents leave late saddles soon and still end near a minimum?",
        escape_law.front_tasks,
    ),
    Experiment(
        "minima",
        "From a saddle to a minimum",
        "How many steps and samples to a second-order point, in d and in eps?",
        minima.tasks,
    ),
    Experiment(
        "table1",
        "Table 1",
        "Do the fourteen methods of the paper's table keep to the powers and logarithms printed?",
        table1.tasks,
    ),
)
