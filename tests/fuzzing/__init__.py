"""Random programs that two optimizers run in step; see `tests/fuzz_cases.py`."""
