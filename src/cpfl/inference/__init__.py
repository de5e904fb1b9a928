"""Use of a run: its records and outcome, its global model for predictions and exports. Nothing here trains."""
