"""The only loop, when it stops, what it writes down, and its files."""

from asgld.run.history import History, Record
from asgld.run.loop import Progress, Run, run
from asgld.run.stopping import Stop, StopWhen

__all__ = ["History", "Progress", "Record", "Run", "Stop", "StopWhen", "run"]
