"""Use of a finished run's global model: export and prediction. Nothing here trains."""
