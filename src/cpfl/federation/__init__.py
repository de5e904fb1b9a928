"""Federated training within a cohort: sessions and all that they decide; not the arithmetic, which engines do."""
