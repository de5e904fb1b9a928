"""Who takes part in a round: selection rules; not what becomes of the selected clients."""
