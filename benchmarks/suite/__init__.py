"""A training suite: which optimizer trains which kind of network best, lr tuned for each of them.

    python benchmarks/training.py suite --prepare         make the data in .bench-data
    python benchmarks/training.py suite                   all tasks, all contenders
    ... --tasks gpt,cnn --contenders adamw,muon           some of them
    ... --schedules constant --seeds 0,1,2                instead of both, and of three seeds
    ... --lrs 1e-3,2e-3                                   this grid, no search
    ... --seconds 450                                     start no training after this long
    ... --more FILE                                       tasks and contenders of your own
    ... --size tiny                                       seconds on a CPU
    ... --table                                           run nothing, print the table
    ... --time                                            time steps, one training at a time
    ... --workers 4                                       trainings at once; 0: in this process
    ... --brief                                           other seeds at the best lr alone
    ... --out FILE                                        instead of benchmarks/results

Rooms: `data` (where samples come from), `networks` (models and losses), `tasks` (TASKS, a table),
`contenders` (CONTENDERS, a table), `running` (one training, and many at once), `grown` (networks
that are made larger by copying), `summary` (what the rows say).

To add a task, write one entry of TASKS: data, model, loss, sizes. Data have `size`, `batch(index)`
and `checks()`, as `suite.data` says. To add a contender, write one
entry of CONTENDERS: a function of a model and lr that returns an optimizer. Both may be in a file
of your own, as dictionaries TASKS and CONTENDERS of `suite.tasks.Task` and
`suite.contenders.Contender`; `--more FILE` reads it. `python benchmarks/training.py report` draws
the figures and writes the numbers into the pages.

A row is one training. A row that the file has is not run again, so a run that was stopped goes on.
The search for lr has one seed: it starts at three learning rates and goes on, by factors of two,
until the best one has a worse neighbour on each side. Then the other seeds run at these three. In
the printed table "AT THE EDGE" says that the best lr is the first or last of those tried.
"""
