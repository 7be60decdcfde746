"""Transformer Engine and Megatron's fast fields. There is neither a GPU nor Transformer Engine: both are stand-ins."""

import dataclasses
import importlib
import os
import sys
from types import SimpleNamespace

import pytest
import torch
from megatron.core.extensions import transformer_engine as extension
from megatron.core.transformer.moe.moe_layer import MoELayer
from tiny_policy import build

from megatron_sspo.errors import UserError
from megatron_sspo.policy.model import _release_probabilities, transformer_config
from megatron_sspo.policy.optimizer import ddp_config
from megatron_sspo.policy.with_cuda import fast_fields, installed
from megatron_sspo.preflight import ranks
from megatron_sspo.processes.cuda_connections import order_kernels
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


def test_no_transformer_engine(monkeypatch):
    assert not installed.has_transformer_engine()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not installed.has_transformer_engine()


@pytest.mark.parametrize(
    ("version", "content", "words"),
    [
        ("2.8.0", "", r"Transformer Engine 2\.8\.0 is installed, older than 2\.9.*pip install"),
        ("1.13.0", "", r"older than 2\.9"),
        (
            "2.9.0",
            "raise ImportError('no transformer_engine_torch')",
            "cannot be imported .no transformer_engine_torch",
        ),
        (
            "2.9.0",
            "raise OSError('libcublas.so.13: cannot open\\nmore')",
            r"cannot be imported \(libcublas.so.13: .*pip",
        ),
    ],
)
def test_a_transformer_engine_that_does_not_work(pretend_installed, version, content, words):
    pretend_installed(version, content)
    with pytest.raises(UserError, match=words) as raised:
        installed.has_transformer_engine()
    assert "\n" not in str(raised.value)


def test_a_transformer_engine_that_megatron_cannot_use(pretend_installed, monkeypatch):
    pretend_installed("9.0.0")
    monkeypatch.setattr(extension, "HAVE_TE", False)
    with pytest.raises(UserError, match=r"Transformer Engine 9\.0\.0 is installed, and megatron-core .* cannot use it"):
        installed.has_transformer_engine()


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
    ],
)
def test_fields_that_are_on_by_default(engine, architecture, options, routing_replay, expected):
    found = fast_fields.fast_model_fields(architecture, options, routing_replay=routing_replay)
    assert found == dict.fromkeys(expected, True)


def test_fields_that_this_release_lacks_are_left_out(engine, monkeypatch):
    @dataclasses.dataclass
    class Older:
        apply_rope_fusion: bool = False

    monkeypatch.setattr(fast_fields, "TransformerConfig", Older)
    assert fast_fields.fast_model_fields(EXPERTS, {}, routing_replay=False) == {"apply_rope_fusion": True}


def test_nothing_is_fast_without_transformer_engine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert fast_fields.fast_model_fields(EXPERTS, {}, routing_replay=False) == {}


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


def test_ddp_on_a_cpu_does_not_overlap():
    assert not ddp_config({}, TWO).overlap_grad_reduce


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


def test_float32_has_no_attention_over_several_context_ranks(without_checks, monkeypatch):
    parallel = Parallel(context=2)
    monkeypatch.setattr(installed, "has_transformer_engine", lambda: False)
    assert transformer("dense", parallel=parallel).context_parallel_size == 2  # by this package's own attention
    monkeypatch.setattr(installed, "has_transformer_engine", lambda: True)
    monkeypatch.setattr(installed, "transformer_engine_version", lambda: "2.11.0")
    assert transformer("dense").context_parallel_size == 1
    assert transformer("dense", parallel=parallel, dtype=torch.bfloat16).context_parallel_size == 2
    with pytest.raises(UserError, match=r"float32 with parallel\.context > 1.*choose bfloat16"):
        transformer("dense", parallel=parallel)


def test_an_old_transformer_engine_has_no_attention_for_packed_float32(without_checks, monkeypatch):
    monkeypatch.setattr(installed, "has_transformer_engine", lambda: True)
    monkeypatch.setattr(installed, "transformer_engine_version", lambda: "2.10.0+abc")
    assert transformer("dense", dtype=torch.bfloat16).bf16
    with pytest.raises(UserError, match=r"float32, and Transformer Engine 2\.10\.0.* install 2\.11 or newer"):
        transformer("dense")


def test_routes_cannot_be_replayed_by_the_fused_router(monkeypatch):
    monkeypatch.setattr(installed, "has_transformer_engine", lambda: True)
    with pytest.raises(UserError, match=r"megatron\.moe_router_fusion is true with routing_replay"):
        transformer(options={"moe_router_fusion": True}, routing_replay=True, dtype=torch.bfloat16)


def test_the_line_at_the_start(without_checks, monkeypatch):
    config = transformer(options={"moe_router_fusion": False, "gradient_accumulation_fusion": False})
    monkeypatch.setattr(fast_fields, "has_fused_norms", lambda: True)
    line = fast_fields.describe_kernels(config, ddp_config({}, TWO))
    expected = "Transformer Engine 2.9.0, with bias_activation_fusion, overlap_grad_reduce, overlap_param_gather"
    assert line == expected
    monkeypatch.setattr(fast_fields, "has_fused_norms", installed.has_fused_norms)  # false here, as with an older one
    assert "tensor by tensor" in fast_fields.describe_kernels(config, ddp_config({}, TWO))
    monkeypatch.setattr(fast_fields, "has_transformer_engine", lambda: False)
    assert "Transformer Engine is not installed" in fast_fields.describe_kernels(config, ddp_config({}, TWO))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert fast_fields.describe_kernels(config, ddp_config({}, TWO)) == ""


@pytest.mark.parametrize(
    ("is_fused", "has_apex", "expected"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_the_output_layer_is_built_without_apex(without_checks, monkeypatch, is_fused, has_apex, expected):
    monkeypatch.setattr(fast_fields, "has_apex_wgrad", lambda: has_apex)
    monkeypatch.setattr(fast_fields.layers, "_grad_accum_fusion_available", False)
    config = transformer()
    config.gradient_accumulation_fusion = is_fused
    with fast_fields.output_layer_without_apex(config):
        assert fast_fields.layers._grad_accum_fusion_available == expected
    assert not fast_fields.layers._grad_accum_fusion_available


def test_a_flex_dispatcher_keeps_no_probabilities():
    # they are in a manager, which needs DeepEP; with them the autograd graph of recomputed layers would stay
    class Layer(MoELayer):
        def __init__(self):
            torch.nn.Module.__init__(self)
            self.token_dispatcher = SimpleNamespace(_comm_manager=SimpleNamespace(token_probs=None))

        def forward(self, hidden):
            self.token_dispatcher._comm_manager.token_probs = hidden
            self.token_dispatcher._comm_manager.dispatched_probs = hidden
            return hidden

    layer = Layer()
    _release_probabilities([layer])
    layer(torch.ones(1))
    assert vars(layer.token_dispatcher._comm_manager) == {"token_probs": None, "dispatched_probs": None}


@pytest.mark.parametrize(
    ("variable", "value", "backend", "words"),
    [
        ("NVTE_FUSED_ATTN", "0", "auto", r"NVTE_FUSED_ATTN is '0' in .* sets this variable .* to 1: unset it"),
        ("NVTE_UNFUSED_ATTN", "1", "flash", r"NVTE_UNFUSED_ATTN is '1' .*attention_backend='flash' .* to 0"),
        ("NVTE_FLASH_ATTN", "", "fused", r"NVTE_FLASH_ATTN is '' in the environment"),
    ],
)
def test_kernels_of_attention_that_the_environment_excludes(monkeypatch, variable, value, backend, words):
    monkeypatch.setattr(os, "environ", {variable: value})
    with pytest.raises(UserError, match=words):
        transformer(options={"attention_backend": backend})


def test_kernels_of_attention_on_which_the_environment_agrees(monkeypatch):
    monkeypatch.setattr(os, "environ", {"NVTE_FLASH_ATTN": "1", "NVTE_FUSED_ATTN": "0"})
    assert transformer(options={"attention_backend": "flash"}).attention_backend.name == "flash"


def test_no_kernel_of_transformer_engine_is_called_local(monkeypatch):
    monkeypatch.setattr(installed, "has_transformer_engine", lambda: True)
    with pytest.raises(UserError, match="is 'local', which leaves Transformer Engine no kernel: leave it out"):
        installed.check_attention("local")


@pytest.mark.parametrize(
    ("kinds", "version", "words"),
    [
        ("a2a", "2.9.0", "has 'a2a', and Transformer Engine 2.9.0 has no such form .* install 2.10 or newer"),
        (["p2p", "all_gather"], "2.17.1", "has 'all_gather', and Transformer Engine 2.17.1 .* install 2.18 or newer"),
        ("a2a", "2.20.2", "divides the 1 key-value heads of a rank among parallel.context=2 ranks: leave it out"),
        ("all_gather", "2.18.0", ""),
        (None, "2.9.0", ""),
    ],
)
def test_forms_of_context_parallelism(monkeypatch, kinds, version, words):
    monkeypatch.setattr(installed, "has_transformer_engine", lambda: True)
    monkeypatch.setattr(installed, "transformer_engine_version", lambda: version)
    installed.check_context(kinds, 2, Parallel(tensor=2))
    if not words:
        installed.check_context(kinds, 2, Parallel(tensor=2, context=2))
        return
    with pytest.raises(UserError, match=words):
        installed.check_context(kinds, 2, Parallel(tensor=2, context=2))


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


def test_kernels_are_compared_between_ranks(monkeypatch):
    mine = ranks.versions()
    assert (mine["transformer-engine"], mine["flash-attn"], mine["NCCL"]) == ("none", "none", "none")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    others = ranks.versions()
    assert others["NCCL"] == "2.27.5"
    with pytest.raises(UserError, match=r"rank 1 on b has NCCL 2\.27\.5, but rank 0 on a has none"):
        ranks._compare([mine, others], ["a", "b"])
