#!/usr/bin/env bash
# Vowpal Wabbit 9.11.9: a categorical value of digits alone is not hashed, but used as a number, so that values share a
# weight which are different texts: 05 and 5, and with the default of 18 bits also 5 and 262149, which is 5 + 2^18. With
# more bits 5 and 4294967301, which is 5 + 2^32, still share one. Values with a letter, such as s5 and s05, do not. Two
# values of which one is always clicked and the other never get scores of 0.5. The option --hash all hashes all values.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check vowpalwabbit==9.11.9 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
from vowpalwabbit import Workspace

FORMS = {"default": "", "28 bits": "-b 28", "--hash all": "--hash all"}


def scores(clicked, other, options):
    """Train on rows of two values, and return the score of each."""
    model = Workspace(f"--quiet --loss_function logistic --link logistic --noconstant -l 0.5 {options}")
    for _ in range(50):
        model.learn(f"1 |site {clicked}")
        model.learn(f"-1 |site {other}")
    return [round(model.predict(f"|site {value}"), 2) for value in (clicked, other)]


for clicked, other, shared in (
    ("5", "6", ()),
    ("s5", "s05", ()),
    ("5", "05", ("default", "28 bits")),
    ("5", str(5 + 2**18), ("default",)),
    ("5", str(5 + 2**32), ("default", "28 bits")),
):
    found = {name: scores(clicked, other, options) for name, options in FORMS.items()}
    print(f"{clicked} always clicked, {other} never: scores {found}")
    for name, (of_clicked, of_other) in found.items():
        if name in shared:
            assert of_clicked == of_other and abs(of_clicked - 0.5) < 0.02
        else:
            assert of_clicked > 0.9 and of_other < 0.1
PROGRAM
venv/bin/python -W ignore program.py
