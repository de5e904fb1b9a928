"""An Experiment becomes a Task: data, devices, cohorts, initial model and label counts. Nothing here trains."""
