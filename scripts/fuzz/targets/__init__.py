"""The targets: one module each; every module in this folder is a target."""
