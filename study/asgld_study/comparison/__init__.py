"""What many runs say: tables, figures and the page of the measured Table 1."""
