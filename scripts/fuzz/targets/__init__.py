"""The targets: one module each, found by being here."""
