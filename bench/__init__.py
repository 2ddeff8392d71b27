"""Paired benchmarks of the operators: every row is timed beside its peers, alternately, in one run."""
