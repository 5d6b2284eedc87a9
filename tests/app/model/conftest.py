import pytest

from app.config.device import BFLOAT16_FLAGS, cpu_flags


@pytest.fixture(autouse=True)
def has_bfloat16(request):
    """Skip a test of the kernels in bfloat16 if oneDNN cannot multiply bfloat16 on this processor. The application uses
    float32 there.
    """
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    takes_it = "bfloat16" in request.node.name or parameters.get("bfloat16", False)
    if takes_it and not cpu_flags() & {*BFLOAT16_FLAGS, "avx512bw"}:
        pytest.skip("oneDNN multiplies no bfloat16 on a processor with AVX2 alone")
