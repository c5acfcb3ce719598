"""The topics of the paper, in its order. A topic is a module: runs, claims, pictures and tables."""

from __future__ import annotations

from asgld_study.drawing import Picture
from asgld_study.engine import Experiment, parts_of
from asgld_study.judge import Claim
from asgld_study.page import DataTable
from asgld_study.paper import bounds, escape, minima, rates, rule, simulation, table1

TOPICS = (rule, bounds, rates, escape, minima, table1, simulation)
EXPERIMENTS = tuple(part for topic in TOPICS for part in parts_of(topic, Experiment))
CLAIMS = tuple(part for topic in TOPICS for part in parts_of(topic, Claim))
PICTURES = tuple(part for topic in TOPICS for part in parts_of(topic, Picture))
TABLES = tuple(part for topic in TOPICS for part in parts_of(topic, DataTable))
