"""The forms in which a request gives its rows. form has what they share, packed unpacks compressed bodies. tensors is
that of V2. Every other file has a FORM of /v1/score and is found by listing this folder, so a new form is one new file.
"""

import pkgutil
from importlib import import_module

from app.serving.forms.form import Form

_MODULES = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
_FORMS: list[Form] = [module.FORM for module in _MODULES if hasattr(module, "FORM")]
FORMS = {form.content_type: form for form in sorted(_FORMS, key=lambda form: form.content_type)}
