"""The whole paper as one report: experiments run, claims judged, a page written."""
