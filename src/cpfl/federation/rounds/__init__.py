"""How a round proceeds: stragglers, crashes, absence and buffered updates, all planned before anybody trains."""
