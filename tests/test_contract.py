"""The static witness: it reads calls out of compiled code, and any difference from the contract fails it.

A library with the same structure as torch_npu's is compiled here, so that no wheel is needed. The real one is read in
tests/host/test_torch_npu.py.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

import pytest

from aclnn_adapter import contract
from aclnn_adapter.compiled_calls import Library
from aclnn_adapter.mangling import MangledNameError, template_arguments
from aclnn_adapter.operators import (
    MHC_POST,
    MHC_PRE,
    MHC_PRE_BACKWARD,
    MHC_SINKHORN,
    OPERATORS,
    Argument,
    Limits,
    Operator,
)

# Each call in a function of its own and all in one, optional tensors as optionals, other calls in between.
_CLIENT = """
#include <functional>
#include <optional>
#include <tuple>
namespace at { struct Tensor { void *held; }; }
namespace c10_npu { struct DeterministicSnapshot { bool on; }; }
void *sink;
int (*make)(const char *);
template <typename... A> __attribute__((noinline))
bool hit_cache(void *address, const char *name, void *function, const c10_npu::DeterministicSnapshot &on, A &&...args) {
  std::tuple<A &...> all(args...);
  std::function<int()> call = [address, name, function, on, all]() -> int {
    sink = function;
    return make(name) + on.on + (std::get<0>(all).held == address);
  };
  return call() == 1;
}
"""
_CALL = """
extern "C" __attribute__((visibility("default"))) bool run{number}({parameters}) {{
  make("{name}GetWorkspaceSize");
  return hit_cache(sink, "{name}", sink, c10_npu::DeterministicSnapshot{{}}, {arguments});
}}
"""
_CPP = {"aclTensor*": "at::Tensor &", "double": "double", "float": "float", "int64_t": "long"}
CALLED = (MHC_PRE, MHC_PRE_BACKWARD, MHC_POST, MHC_SINKHORN)


def source(operators: Tuple[Operator, ...]) -> str:
    """C++ that makes the calls."""
    text = _CLIENT
    for number, operator in enumerate(operators):
        types = [
            "std::optional<at::Tensor> &" if a.optional and a.role == "input" else _CPP[a.c_type]
            for a in operator.arguments
        ]
        parameters = ", ".join(f"{kind} a{i}" for i, kind in enumerate(types))
        arguments = ", ".join(f"a{i}" for i in range(len(types)))
        text += _CALL.format(number=number, name=operator.name, parameters=parameters, arguments=arguments)
    return text


def compiled(folder: Path, operators: Tuple[Operator, ...]) -> bytes:
    """A library that makes the calls, without symbols."""
    if shutil.which("g++") is None:
        pytest.skip("the client is compiled here, and g++ was not found")
    (folder / "client.cc").write_text(source(operators))
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-s"]
    subprocess.run(["g++", *flags, "client.cc", "-o", "client.so"], cwd=folder, check=True)
    return (folder / "client.so").read_bytes()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compiled(tmp_path_factory.mktemp("client"), CALLED)


@pytest.fixture(scope="module")
def library(image: bytes) -> Library:
    library = Library(image)
    if library.machine != 62:
        pytest.skip("only code for x86-64 is read")
    return library


def changed(operator: Operator) -> Iterator[Tuple[str, Operator]]:
    """The operator with one type changed, two arguments swapped whose types differ, one left out, one more."""
    arguments = operator.arguments

    def of(what: str, *changed_arguments: Argument) -> Tuple[str, Operator]:
        return what, dataclasses.replace(operator, arguments=changed_arguments)

    for i, argument in enumerate(arguments):
        for kind in ("aclTensor*", "float", "double", "int64_t", "bool"):
            if kind != argument.c_type:
                other = dataclasses.replace(argument, c_type=kind)
                yield of(f"{argument.name} as {kind}", *arguments[:i], other, *arguments[i + 1 :])
        yield of(f"without {argument.name}", *arguments[:i], *arguments[i + 1 :])
        yield of(f"{argument.name} twice", *arguments[: i + 1], *arguments[i:])
    for i, j in itertools.combinations(range(len(arguments)), 2):
        if arguments[i].c_type != arguments[j].c_type:
            swapped = list(arguments)
            swapped[i], swapped[j] = arguments[j], arguments[i]
            yield of(f"{arguments[i].name} and {arguments[j].name} swapped", *swapped)


def differing(findings: List[contract.Finding]) -> Dict[str, Tuple[str, ...]]:
    return {f.operator.name: f.differences for f in findings if f.differences}


def test_calls_are_read_out_of_the_code_of_a_stripped_library(library: Library) -> None:
    calls = library.calls([*OPERATORS, "aclnnNoSuchThing"])
    assert set(calls) == {operator.name for operator in CALLED}
    assert calls["aclnnMhcSinkhorn"] == {
        ("at::Tensor&", "float&", "long&", "at::Tensor&", "at::Tensor&", "at::Tensor&")
    }
    assert calls["aclnnMhcPost"] == {
        ("at::Tensor&", "std::optional<at::Tensor>&", "at::Tensor&", "at::Tensor&", "at::Tensor&")
    }


def test_the_contract_agrees_and_operators_without_a_call_are_not_counted(library: Library) -> None:
    findings = contract.compare(library, OPERATORS)
    assert not differing(findings)
    assert {f.operator.name for f in findings if f.called} == {operator.name for operator in CALLED}


@pytest.mark.parametrize("operator", CALLED, ids=lambda operator: str(operator.name))
def test_every_change_of_a_type_or_of_the_order_is_found(library: Library, operator: Operator) -> None:
    calls = library.calls([operator.name])[operator.name]
    for what, other in changed(operator):
        assert any(contract.differences(other, types) for types in calls), what


def test_differences_name_the_argument_and_both_types(library: Library) -> None:
    (other,) = (o for what, o in changed(MHC_PRE) if what == "normEps as float")
    assert differing(contract.compare(library, {other.name: other})) == {
        "aclnnMhcPre": ("argument 6 (normEps): double there, float in the contract",)
    }


def test_an_argument_that_the_client_leaves_null_must_be_optional(library: Library) -> None:
    strict = tuple(dataclasses.replace(a, optional=False) for a in MHC_POST.arguments)
    (finding,) = contract.compare(library, {MHC_POST.name: dataclasses.replace(MHC_POST, arguments=strict)})
    assert finding.differences == ("argument 2 (hRes) may be null there, not in the contract",)


def test_a_name_without_a_readable_call_is_a_difference(tmp_path: Path, library: Library) -> None:
    mute = Library(library.data.replace(b"hit_cache", b"hat_cache"))
    assert differing(contract.compare(mute, OPERATORS)) == {
        operator.name: ("its name is there, but the call could not be read",) for operator in CALLED
    }


def test_where_the_code_cannot_be_read_the_lists_still_count(image: bytes) -> None:
    foreign = Library(image[:18] + struct.pack("<H", 183) + image[20:])  # the code of another machine
    findings, note = contract._findings(foreign)
    assert "Weaker" in note
    assert not differing(findings)
    (other,) = (o for what, o in changed(MHC_PRE) if what == "normEps as float")
    assert set(differing(contract.compare_loosely(foreign, {other.name: other}))) == {"aclnnMhcPre"}


def test_a_name_outside_of_what_is_loaded_is_not_called(image: bytes, library: Library) -> None:
    name = next(name for name in OPERATORS if name not in {operator.name for operator in CALLED})
    calls = Library(image + b"\0" + name.encode() + b"\0").calls([*OPERATORS])
    assert calls.pop(name) == set()
    assert calls == library.calls([*OPERATORS])


def test_lists_of_types_that_no_operator_has_are_passed_over(image: bytes, library: Library) -> None:
    other = Library(image + b"\0Z9hit_cacheIJFEEbPvEUlvE_\0")
    assert len(list(other._type_names())) == len(list(library._type_names())) + 1
    assert other.argument_lists() == library.argument_lists()


@pytest.mark.parametrize("damage", ["no table", "another version", "functions in no segment"])
def test_without_a_table_of_functions_the_lists_still_count(image: bytes, library: Library, damage: str) -> None:
    (table,) = library.exceptions
    start = table[2]
    if damage == "no table":
        broken = Library(image)
        broken.exceptions = []
    elif damage == "another version":
        broken = Library(image[:start] + b"\2" + image[start + 1 :])
    else:
        broken = Library(image)
        broken._starts = [start + 2**40 for start in library._function_starts()]
    findings, note = contract._findings(broken)
    reason = "no segment holds the address" if damage == "functions in no segment" else "it has no table of functions"
    assert f"Weaker than usual ({reason}" in note
    assert not differing(findings)


def wheel(path: Path, library: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("torch_npu/lib/libtorch_npu.so", library)
        file.writestr("torch_npu/version.py", "__version__ = '9.8.7'\n")
    return path


def test_a_wheel_a_package_and_its_parent_are_read(
    tmp_path: Path, image: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = wheel(tmp_path / "torch_npu.whl", image)
    with zipfile.ZipFile(place) as file:
        file.extractall(tmp_path / "site")
    spec = importlib.util.spec_from_file_location("torch_npu", tmp_path / "site/torch_npu/__init__.py")
    monkeypatch.setattr(contract.importlib.util, "find_spec", lambda _: spec)
    for named in ([str(place)], [str(tmp_path / "site")], [str(tmp_path / "site/torch_npu")], []):
        assert contract.main(named) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("torch_npu 9.8.7, ")
        assert "aclnnMhcPre                  agrees, 13 arguments" in lines[1]
        assert lines[-1].split() == ["aclnnMhcPreSinkhornBackward", "not", "called"]


def test_a_difference_is_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = tuple(dataclasses.replace(a, c_type="float") if a.name == "hcEps" else a for a in MHC_PRE.arguments)
    other = dataclasses.replace(MHC_PRE, arguments=arguments)
    place = wheel(tmp_path / "torch_npu.whl", compiled(tmp_path, (other, MHC_POST)))
    assert contract.main([str(place)]) == 1
    assert "DIFFERS: argument 7 (hcEps): float there, double in the contract" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["nowhere", "empty folder", "text", "other wheel", "not a library", "other library"])
def test_nothing_to_read_is_status_2_with_a_reason(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    reasons = {
        "nowhere": "does not exist",
        "empty folder": "neither a wheel of torch_npu nor a folder",
        "text": "neither a wheel of torch_npu nor a folder",
        "other wheel": "it is no wheel of torch_npu",
        "not a library": "not a little-endian 64-bit ELF library",
        "other library": "calls none of the operators",
    }
    if kind == "empty folder":
        place.mkdir()
    elif kind == "text":
        place.write_text("no wheel")
    elif kind == "other wheel":
        with zipfile.ZipFile(place, "w") as file:
            file.writestr("other/__init__.py", "")
    elif kind == "not a library":
        wheel(place, b"no library")
    elif kind == "other library":
        wheel(place, compiled(tmp_path, ()))
    assert contract.main([str(place)]) == 2
    shown = capsys.readouterr()
    assert reasons[kind] in shown.err
    assert not shown.out


def test_without_torch_npu_a_place_must_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contract.importlib.util, "find_spec", lambda _: None)
    assert contract.main([]) == 2
    assert "torch_npu is not installed in this Python; name a wheel" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({}, None),
        ({"hidden_size": 256, "num_iters": 20, "token_dims": 2}, None),
        ({"token_dims": 1}, "x has 1 token dimensions, not 2"),
        ({"num_streams": 5}, "num_streams 5 is not one of 4, 6"),
        ({"num_iters": 101}, "num_iters 101 is not within 1 to 100"),
        ({"hidden_size": 200}, "hidden_size 200 is not a multiple of 128"),
        ({"hidden_size": 128}, "hidden_size 128 is below 256"),
        ({"hidden_size": 1024}, "hidden_size 1024 is above 512"),
    ],
)
def test_limits_say_which_of_them_is_not_kept(sizes: Dict[str, int], reason: Optional[str]) -> None:
    limits = Limits(
        num_streams=(4, 6),
        min_hidden_size=256,
        max_hidden_size=512,
        hidden_size_multiple=128,
        num_iters=(1, 100),
        token_dims=(2,),
    )
    assert limits.refusal(**{"num_streams": 4, **sizes}) == reason


def test_limits_of_single_values() -> None:
    limits = Limits(hidden_sizes=(4096, 7168), num_iters=(20, 20))
    assert limits.refusal(3, 4096, 20) is None
    assert limits.refusal(3, 4097, 20) == "hidden_size 4097 is not one of 4096, 7168"
    assert limits.refusal(3, 4096, 19) == "num_iters 19 is not 20"


def test_mangled_types_are_spelled_out() -> None:
    def read(types: str) -> Tuple[str, ...]:
        return template_arguments(f"9hit_cacheIJ{types}EEbPv", "hit_cache")

    assert read("RN2at6TensorERKS1_S2_RdRl") == ("at::Tensor&", "at::Tensor const&", "at::Tensor&", "double&", "long&")
    assert read("RKSt8optionalIN2at6TensorEES5_Rf") == (
        "std::optional<at::Tensor> const&",
        "std::optional<at::Tensor> const&",
        "float&",
    )
    assert read("RN3c108ArrayRefIlEERSt5arrayIbLm3EERPcRDn") == (
        "c10::ArrayRef<long>&",
        "std::array<bool, 3>&",
        "char*&",
        "std::nullptr_t&",
    )
    assert read("RA3_iRSsRSaIiE") == ("int [3]&", "std::string&", "std::allocator<int>&")
    for broken in ("R", "S9_", "S-_", "N2at", "NxE", "F", "99ab"):
        with pytest.raises(MangledNameError):
            template_arguments(f"9hit_cacheIJ{broken}", "hit_cache")
    with pytest.raises(MangledNameError):
        template_arguments("3fooIJdE", "hit_cache")
