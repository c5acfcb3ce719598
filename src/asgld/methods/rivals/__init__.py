"""The methods that the paper and its readers compare the family with."""
