"""Many runs: problems x methods x starts, in parallel, cached, resumable, tuned alike."""
