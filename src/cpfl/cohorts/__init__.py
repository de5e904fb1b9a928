"""Who trains with whom: the rules that assign clients to cohorts; what a cohort then does is in `federation`."""
