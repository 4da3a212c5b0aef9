"""`fractus bench`: how fast Fractus is, measured one cell at a time."""
