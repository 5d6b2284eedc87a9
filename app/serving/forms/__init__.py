"""Convert the body of a request to rows, in each form that the service accepts.

`bodies` receives and decompresses bodies, `form` has what all forms share, and `tensors` reads requests of V2 (Open
Inference Protocol). Every other module reads one content type of /v1/score and describes it in a constant FORM. The
modules are found by listing this folder, so a new form takes one new file.
"""

import pkgutil
from importlib import import_module

from app.serving.forms.form import Form

_MODULES = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
_FORMS: list[Form] = [module.FORM for module in _MODULES if hasattr(module, "FORM")]
FORMS = {form.content_type: form for form in sorted(_FORMS, key=lambda form: form.content_type)}
