"""Run folders: what is written during a run, in which order, and how it is read again. Nothing here trains."""
