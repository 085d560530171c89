"""The device contract: what a backend implements, what it is told, and how its answers are checked.

Codes such as A7 or M11 name its clauses: see docs/contract.md.
"""
