"""Score a log in Criteo's format by a registered model: score.py models:/NAME/VERSION LOG SCORES"""

import sys

import mlflow
import pandas as pd

model, log, scores = sys.argv[1:]
columns = ["label", *(f"I{number}" for number in range(1, 14)), *(f"C{number}" for number in range(1, 27))]
# Cells as text are read as the cells of a log. Numbers that pandas has guessed would lose leading zeros.
rows = pd.read_csv(log, sep="\t", header=None, names=columns, dtype=str, keep_default_na=False)
pd.DataFrame({"score": mlflow.pyfunc.load_model(model).predict(rows)}).to_csv(scores, index=False)
