"""Which of many small faults do the tests find? The same faults in two trees tell whether the tests became worse.

    git worktree add ../before v0.19
    python -m scripts.mutants choose ../before . --count 240 --seed 1522 > mutants.json
    python -m scripts.mutants run ../before mutants.json --side old --out before.json
    python -m scripts.mutants run . mutants.json --side new --out after.json
    python -m scripts.mutants compare mutants.json before.json after.json

A mutant is one small change inside a function of the package: a comparison, a sign, a constant, a dropped call.
`choose` takes lines that both trees have exactly once, so that both get the same faults. `run` runs all tests once
and notes which of them reach each mutated line; then it runs, for each mutant in a copy of the tree, the quickest of
those tests until one fails. `--budget` limits their seconds for a mutant, the same for both trees. A run that was
stopped goes on with `--resume`: it keeps the tests' results in `--folder` and the verdicts in `--out`.

It takes about an hour of one core a tree. Python 3.12 or later notes lines at little cost; older ones are slower.
"""
