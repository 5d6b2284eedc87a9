"""Convert the body of a request to rows, in each form that the service accepts.

`bodies` receives and decompresses bodies, `form` holds what all forms share, and `tensors` is the form of V2. Every
other file has a FORM of /v1/score. Forms are found by listing this folder, so a new form is one new file.
"""

import pkgutil
from importlib import import_module

from app.serving.forms.form import Form

_MODULES = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
_FORMS: list[Form] = [module.FORM for module in _MODULES if hasattr(module, "FORM")]
FORMS = {form.content_type: form for form in sorted(_FORMS, key=lambda form: form.content_type)}
