"""The manifests of examples/kubernetes against Kubernetes's published schemas."""

import kubernetes_validate
import pytest
import yaml


@pytest.mark.parametrize(("name", "kinds"), [("training", ["Job"]), ("service", ["Deployment", "Service"])])
def test_manifests_fit_the_published_schemas(project, name, kinds):
    manifests = list(yaml.safe_load_all((project / "examples" / "kubernetes" / f"{name}.yaml").read_text()))
    assert [manifest["kind"] for manifest in manifests] == kinds
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.37", strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**manifests[0], "spec": {"template": {"limits": 1}}}, "1.37", strict=True)
