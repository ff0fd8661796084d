"""The kernels compile for GPUs that are not here, and keep everything in registers."""

import subprocess
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="Triton is not installed: it is there for Linux on x86-64")

from annopipe.errors import CostError
from benchmarks.kernels import offline, variants

SPARED = "sm_{0.target} {0.kernel} {0.form} {0.tile}: {0.spilled_bytes} bytes spilled"


def no_spills(found):
    found = list(found)
    assert [SPARED.format(one) for one in found if one.spilled_bytes] == []
    assert all(one.registers <= 255 for one in found)
    # what a program may have: 227 KiB on both; the first tile of each table fits into the 99 KiB of smaller GPUs, too
    assert all(one.shared_bytes <= 227 * 1024 for one in found)
    return found


@pytest.mark.slow
def test_typical_forms_compile_for_both_targets_without_spills():
    found = no_spills(offline.report(quick=True))
    assert {(one.target, one.kernel) for one in found} == {
        (target, name)
        for target in variants.TARGETS
        for name in ("permute", "unpermute", "row_products", "grouped_mm", "grouped_mm_weight_grad")
    }
    products = [one for one in found if one.kernel.startswith("grouped_mm")]
    assert all(one.shared_bytes <= 99 * 1024 for one in products)
    assert {one.target: one.instruction for one in products} == {90: "wgmma", 100: "tcgen05.mma"}
    printed = offline.table(found)
    assert all(one.form in printed for one in found)


@pytest.mark.nightly
@pytest.mark.parametrize("target", variants.TARGETS)
def test_every_form_that_may_be_chosen_compiles_without_spills(target):
    assert len(no_spills(offline.report([target]))) > 80


def test_forms_name_every_argument_of_their_kernel():
    for target in variants.TARGETS:
        for one in variants.variants(target):
            assert set(one.constants).isdisjoint(one.types)
            assert {*one.constants, *one.types} == set(one.kernel.arg_names)


def test_a_binary_that_cannot_be_read_is_an_error(monkeypatch):
    said = subprocess.CompletedProcess([], 1, stdout="", stderr="not an ELF file\n")
    # Its name in that module only: Triton starts programs, too.
    monkeypatch.setattr(offline, "subprocess", SimpleNamespace(run=lambda *_args, **_options: said))
    typical = next(variant for variant in variants.variants(90) if variant.typical)
    with pytest.raises(CostError, match="cuobjdump does not say what the kernel takes: not an ELF file"):
        offline.resources(typical, 90)
