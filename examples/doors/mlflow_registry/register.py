"""Log a bundle in MLflow, and register it as the next version of a model: register.py BUNDLE MODEL"""

import sys
from pathlib import Path

import mlflow

bundle, model = Path(sys.argv[1]), sys.argv[2]
if not (bundle / "manifest.json").exists():
    sys.exit(f"error: {bundle} is not a bundle: it has no manifest.json; write one with python -m app export")
mlflow.set_experiment("clicks")
with mlflow.start_run():
    logged = mlflow.pyfunc.log_model(
        name="bundle",
        loader_module="wide_deep_bundle.app.scoring.predictor",
        data_path=str(bundle),
        code_paths=[str(bundle / "code" / "wide_deep_bundle")],
        pip_requirements=str(bundle / "requirements.txt"),
        registered_model_name=model,
    )
print(f"registered {bundle} as models:/{model}/{logged.registered_model_version}")
