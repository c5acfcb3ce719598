"""The paper, measured: what is run, which claims that decides, and how it is shown."""
