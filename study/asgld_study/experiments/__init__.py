"""Declarations of experiments: what is run, with which settings, and what is read off."""
