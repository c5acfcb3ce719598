"""The topics of the paper, in its order. A topic is a module: runs, claims, pictures and tables."""

from __future__ import annotations

from asgld_study.paper import accumulator, bounds, escape, minima, rates, rule, simulation, table1

TOPICS = (rule, accumulator, bounds, rates, escape, minima, table1, simulation)
EXPERIMENTS = tuple(experiment for topic in TOPICS for experiment in topic.EXPERIMENTS)
CLAIMS = tuple(claim for topic in TOPICS for claim in topic.CLAIMS)
PICTURES = tuple(picture for topic in TOPICS for picture in topic.PICTURES)
TABLES = tuple(table for topic in TOPICS for table in topic.TABLES)
