"""The exact laboratory: a world whose every answer can be written down, and what methods do there on average."""
