"""Transformer Engine and Megatron's fast fields. There is neither a GPU nor Transformer Engine: both are stand-ins."""

import importlib
import os
import sys

import pytest
import torch
from megatron.core.extensions import transformer_engine as extension
from tiny_policy import build

from megatron_sspo.errors import UserError
from megatron_sspo.policy.model import transformer_config
from megatron_sspo.policy.optimizer import ddp_config
from megatron_sspo.policy.with_cuda import fast_fields, installed
from megatron_sspo.processes.surroundings import order_kernels
from megatron_sspo.run import Parallel
from megatron_sspo.weights.family import load_family


@pytest.fixture
def pretend_installed(monkeypatch, tmp_path):
    """pretend_installed(version, content): a GPU, and a Transformer Engine whose part for torch has that content."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(extension, "HAVE_TE", True)
    monkeypatch.syspath_prepend(tmp_path)

    def install(version, content=""):
        for folder in ("transformer_engine", "transformer_engine/pytorch"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "__init__.py").write_text(content if folder.endswith("pytorch") else "")
        metadata = tmp_path / f"transformer_engine-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: transformer_engine\nVersion: {version}\n")
        importlib.invalidate_caches()

    yield install
    for name in [name for name in sys.modules if name.split(".")[0] == "transformer_engine"]:
        del sys.modules[name]


@pytest.mark.parametrize("version", ["2.9.0", "2.20.2"])
def test_a_transformer_engine_that_works(pretend_installed, version):
    pretend_installed(version)
    assert installed.has_transformer_engine()
    assert installed.transformer_engine_version() == version


@pytest.mark.parametrize(
    ("version", "content", "words"),
    [
        ("2.8.0", "", r"Transformer Engine 2\.8\.0 is installed, and it is older than 2\.9.*pip install"),
        (
            "2.9.0",
            "raise ImportError('no transformer_engine_torch')",
            "cannot be imported .no transformer_engine_torch",
        ),
    ],
)
def test_a_transformer_engine_that_does_not_work(pretend_installed, version, content, words):
    pretend_installed(version, content)
    with pytest.raises(UserError, match=words) as raised:
        installed.has_transformer_engine()
    assert "\n" not in str(raised.value)


# ------------------------------------------------------------------ fast fields


@pytest.fixture
def engine(monkeypatch):
    """A Transformer Engine on a GPU, as far as the choice of fields looks."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(fast_fields, "has_transformer_engine", lambda: True)
    monkeypatch.setattr(fast_fields, "transformer_engine_version", lambda: "2.9.0")


DENSE = {"apply_rope_fusion", "bias_activation_fusion", "gradient_accumulation_fusion"}
MOE = DENSE | {"moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion"}
SWIGLU = {"activation_func": torch.nn.functional.silu, "gated_linear_unit": True}
EXPERTS = {**SWIGLU, "num_moe_experts": 8, "moe_router_dtype": "fp32"}


@pytest.mark.parametrize(
    ("architecture", "options", "routing_replay", "expected"),
    [
        (SWIGLU, {}, False, DENSE),
        (EXPERTS, {}, False, MOE),
        (EXPERTS, {}, True, MOE - {"moe_router_fusion"}),
        (EXPERTS, {"moe_router_dtype": "fp64"}, False, MOE - {"moe_router_fusion"}),
        (SWIGLU, {"use_te_activation_func": True}, False, DENSE - {"bias_activation_fusion"}),
        ({**SWIGLU, "gated_linear_unit": False}, {}, False, DENSE - {"bias_activation_fusion"}),
        ({**SWIGLU, "softmax_type": "learnable"}, {}, False, {**dict.fromkeys(DENSE, True), "cp_comm_type": "a2a"}),
    ],
)
def test_fields_that_are_on_by_default(engine, architecture, options, routing_replay, expected):
    found = fast_fields.fast_model_fields(architecture, options, routing_replay=routing_replay)
    assert found == {**dict.fromkeys(expected, True), **(expected if isinstance(expected, dict) else {})}


TWO = Parallel(data=2)


@pytest.mark.parametrize(
    ("options", "parallel", "reduces", "gathers"),
    [
        ({}, TWO, True, True),
        ({}, Parallel(context=2), True, True),
        ({}, Parallel(tensor=2), False, False),
        ({"overlap_grad_reduce": False}, TWO, False, False),
        ({"overlap_param_gather": False}, TWO, True, False),
        ({"use_distributed_optimizer": False}, TWO, True, False),
    ],
)
def test_overlap_of_ddp(engine, options, parallel, reduces, gathers):
    found = ddp_config(options, parallel)
    assert (found.overlap_grad_reduce, found.overlap_param_gather) == (reduces, gathers)


def transformer(kind="moe", **given):
    options, replay = given.pop("options", {}), given.pop("routing_replay", False)
    model = build(kind)
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    parallel, dtype = given.pop("parallel", Parallel()), given.pop("dtype", torch.float32)
    return transformer_config(load_family(config), config, parallel, dtype, options, routing_replay=replay)


@pytest.fixture
def without_checks(engine, monkeypatch):
    """Leaves out the fields for which Megatron asks Transformer Engine itself."""
    chosen = ("moe_router_fusion", "bias_activation_fusion", "gradient_accumulation_fusion", *fast_fields._DDP_FIELDS)
    monkeypatch.setattr(fast_fields, "_known", lambda kind, wanted: {n: True for n in chosen if wanted.get(n)})


def test_the_users_fields_win(without_checks):
    found = transformer(options={"gradient_accumulation_fusion": False})
    assert (found.moe_router_fusion, found.bias_activation_fusion) == (True, True)
    assert not found.gradient_accumulation_fusion
    assert not transformer(routing_replay=True).moe_router_fusion


@pytest.mark.parametrize(
    ("version", "is_grouped", "capability", "given", "expected"),
    [
        ("2.17.0", True, (9, 0), None, "1"),
        ("2.17.0", True, (9, 0), "0", "0"),
        ("2.20.2", True, (10, 0), None, "1"),
        ("2.20.2", False, (9, 0), None, None),
        ("2.16.1", True, (9, 0), None, None),
    ],
)
def test_experts_are_multiplied_at_once_on_hopper(
    without_checks, monkeypatch, version, is_grouped, capability, given, expected
):
    monkeypatch.setattr(os, "environ", dict(os.environ) | ({} if given is None else {fast_fields._CUTLASS: given}))
    monkeypatch.setattr(fast_fields, "transformer_engine_version", lambda: version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    config = transformer("moe" if is_grouped else "dense")
    config.moe_grouped_gemm = is_grouped
    fast_fields.multiply_experts_at_once(config)
    assert os.environ.get(fast_fields._CUTLASS) == expected
    is_said = "CUTLASS" in fast_fields.describe_kernels(config, ddp_config({}, Parallel()))
    assert is_said == (expected == "1" and capability == (9, 0))


def test_routes_cannot_be_replayed_by_the_fused_router(monkeypatch):
    monkeypatch.setattr(installed, "has_transformer_engine", lambda: True)
    with pytest.raises(UserError, match=r"megatron\.moe_router_fusion is true with routing_replay"):
        transformer(options={"moe_router_fusion": True}, routing_replay=True, dtype=torch.bfloat16)


# ------------------------------------------------------------------ the process and the other ranks


@pytest.mark.parametrize(
    ("sizes", "given", "expected"),
    [
        ({"tensor": 1, "context": 1}, None, None),
        ({"tensor": 2, "context": 1}, None, "1"),
        ({"tensor": 1, "context": 2}, None, "1"),
        ({"tensor": 2, "context": 1}, "8", "8"),
    ],
)
def test_the_order_of_kernels(monkeypatch, sizes, given, expected):
    monkeypatch.setattr(os, "environ", {} if given is None else {"CUDA_DEVICE_MAX_CONNECTIONS": given})
    order_kernels(**sizes)
    assert os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == expected
