"""The topics of the paper: what is run, which claims it decides, how it is drawn."""
