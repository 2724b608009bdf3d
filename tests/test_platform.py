"""What this machine is said to be, and when the kernels are refused."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, List, Optional, Tuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from mindspore.ops.operations._custom_ops_utils import CustomInfoGenerator

from aclnn_adapter import custom, platform
from aclnn_adapter.custom import AclnnKernel
from aclnn_adapter.operators import MHC_PRE, MHC_PRE_BACKWARD, OPERATORS, TENSOR, Operator
from ms_mhc import MhcPre, __main__, info, mhc_pre
from ms_mhc.backends import registry
from ms_mhc.backends.registry import Job
from ms_mhc.operation import BACKWARD, FORWARD

OLD = """
// published before gradXPostOptional was added
aclnnStatus aclnnMhcPreBackwardGetWorkspaceSize(const aclTensor *x, const aclTensor *phi, const aclTensor *alpha,
    const aclTensor *gradHIn, const aclTensor *gradHPost, const aclTensor *gradHRes, const aclTensor *invRms,
    const aclTensor *hMix, const aclTensor *hPre, const aclTensor *hPost, const aclTensor *gamma, double hcEps,
    aclTensor *gradX, aclTensor *gradPhi, aclTensor *gradAlpha, aclTensor *gradBias, aclTensor *gradGamma,
    uint64_t *workspaceSize, aclOpExecutor **executor);
"""


def header(operator: Operator, **types: str) -> str:
    parameters = [f"const {types.get(a.name, a.c_type).replace('*', ' *')} {a.name}" for a in operator.arguments]
    tail = ["uint64_t* workspaceSize", "aclOpExecutor ** executor /* out */"]
    return f"ACLNN_API aclnnStatus {operator.symbols[0]}(\n  " + ",\n  ".join(parameters + tail) + ");\n"


@pytest.fixture
def cann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder laid out like CANN."""
    home = tmp_path / "cann"
    for folder in ("include/aclnnop", "lib64", "opp/vendors"):
        (home / folder).mkdir(parents=True)
    monkeypatch.setenv("ASCEND_OPP_PATH", str(home / "opp"))
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    monkeypatch.delenv("ASCEND_CUSTOM_OPP_PATH", raising=False)
    return home


def place(home: Path, operator: Operator, text: str) -> None:
    (home / "include/aclnnop" / operator.header).write_text(text)


def test_header_that_agrees_is_accepted(cann: Path) -> None:
    place(cann, MHC_PRE, header(MHC_PRE))
    assert platform.header_difference(MHC_PRE) is None


def test_header_that_is_missing_is_accepted(cann: Path) -> None:
    assert platform.header_difference(MHC_PRE) is None


def test_old_header_is_refused_with_the_first_difference(cann: Path) -> None:
    place(cann, MHC_PRE_BACKWARD, OLD)
    said = platform.header_difference(MHC_PRE_BACKWARD)
    assert said is not None
    assert "19 parameters where 20 are expected" in said
    assert "parameter 12: double instead of aclTensor* (gradXPostOptional)" in said


def test_eps_of_another_c_type_is_refused(cann: Path) -> None:
    place(cann, MHC_PRE, header(MHC_PRE, normEps="float"))
    said = platform.header_difference(MHC_PRE)
    assert said is not None
    assert "parameter 6: float instead of double (normEps)" in said


@pytest.mark.parametrize(
    "parameter",
    [
        "const aclTensor *{}",
        "const aclTensor* {}",
        "aclTensor const *{}",
        "const aclTensor\n    *{}",
        "const\taclTensor\t*\n\t{}",
        "const aclTensor /* [B, S, N, D] */ *{} // see the document\n",
        "const aclTensor *const {}",
        "const struct aclTensor *__restrict {}",
        "IN const aclTensor *{}",
        "const aclTensor {}[]",
        "const aclTensor \\\n*{}",
        "const aclTensor *",
    ],
)
def test_typography_of_a_header_does_not_matter(cann: Path, parameter: str) -> None:
    types = [parameter.format(a.name) if a.c_type == TENSOR else f"{a.c_type}\n{a.name}" for a in MHC_PRE.arguments]
    tail = ["std::uint64_t\n*workspaceSize", "aclOpExecutor *executor[]"]
    text = f"#include <x.h>\nACLNN_API\naclnnStatus ACLNN_CALL\n{MHC_PRE.symbols[0]} (\n"
    place(cann, MHC_PRE, text + "\n,".join(types + tail) + "\n) noexcept;\n")
    assert platform.header_difference(MHC_PRE) is None


@pytest.mark.parametrize(
    ("parameter", "shown"),
    [
        ("const aclTensor **{}", "aclTensor**"),
        ("const aclTensorList *{}", "aclTensorList*"),
        ("long long {}", "long long"),
    ],
)
def test_types_that_differ_are_shown_without_names(cann: Path, parameter: str, shown: str) -> None:
    place(cann, MHC_PRE, header(MHC_PRE).replace("const aclTensor * phi", parameter.format("phi")))
    assert f"parameter 2: {shown} instead of aclTensor* (phi)" in str(platform.header_difference(MHC_PRE))


def test_header_without_the_function_is_refused(cann: Path) -> None:
    place(cann, MHC_PRE, "aclnnStatus aclnnOther(void);")
    assert "does not declare aclnnMhcPreGetWorkspaceSize" in str(platform.header_difference(MHC_PRE))


def test_vendors_header_comes_first(cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(cann, MHC_PRE, header(MHC_PRE))
    (cann / "opp/vendors/config.ini").write_text("load_priority=acme\n")
    vendor = cann / "opp/vendors/acme/op_api/include"
    vendor.mkdir(parents=True)
    (vendor / MHC_PRE.header).write_text(header(MHC_PRE, hcEps="float"))
    assert str(vendor) in str(platform.header_difference(MHC_PRE))

    custom_folder = cann / "custom"
    (custom_folder / "op_api/include").mkdir(parents=True)
    (custom_folder / "op_api/include" / MHC_PRE.header).write_text(header(MHC_PRE))
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", str(custom_folder))
    assert platform.header_difference(MHC_PRE) is None


def test_symbols_are_looked_up_in_every_library_of_cann(cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self, name: str) -> None:
            for symbol in {"libopapi.so": [], "libopapi_transformer.so": MHC_PRE.symbols}[Path(name).name]:
                setattr(self, symbol, None)

    monkeypatch.setattr(ctypes, "CDLL", Library)
    (cann / "lib64/libopapi.so").touch()
    assert platform.missing_symbols(MHC_PRE) == list(MHC_PRE.symbols)
    (cann / "lib64/libopapi_transformer.so").touch()
    assert platform.missing_symbols(MHC_PRE) == []
    assert platform.missing_symbols(MHC_PRE_BACKWARD) == list(MHC_PRE_BACKWARD.symbols)


def test_reasons_come_in_the_order_device_cann_soc_symbol(cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the device target is CPU" in str(platform.refusal(MHC_PRE))
    monkeypatch.setattr(platform, "device_target", lambda: "Ascend")
    monkeypatch.setattr(platform, "soc_version", lambda: "ascend910b")
    assert "aclnnMhcPre is not available on ascend910b, only on ascend950" in str(platform.refusal(MHC_PRE))
    monkeypatch.setattr(platform, "soc_version", lambda: "ascend950")
    (cann / "version.cfg").write_text("# CANN\nversion=[9.0.0]\n")
    assert "CANN 9.0.0" in str(platform.refusal(MHC_PRE))
    assert "does not export aclnnMhcPreGetWorkspaceSize or aclnnMhcPre" in str(platform.refusal(MHC_PRE))
    monkeypatch.delenv("ASCEND_OPP_PATH")
    monkeypatch.delenv("ASCEND_HOME_PATH")
    assert "neither ASCEND_OPP_PATH nor ASCEND_HOME_PATH is set" in str(platform.refusal(MHC_PRE))


def test_soc_that_nobody_names_is_a_reason(cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "device_target", lambda: "Ascend")
    monkeypatch.setattr(platform, "soc_version", lambda: "")
    monkeypatch.delenv("MS_SIMULATION_LEVEL", raising=False)
    assert "the soc is unknown: neither MindSpore nor CANN's runtime names it here" in str(platform.refusal(MHC_PRE))
    monkeypatch.setenv("MS_SIMULATION_LEVEL", "1")
    assert "names it in a dry run (MS_SIMULATION_LEVEL=1)" in str(platform.refusal(MHC_PRE))


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("Ascend950PR_9579", "ascend950"),
        ("Ascend950DT_9591", "ascend950"),
        ("Ascend910_9382", "ascend910_93"),
        ("Ascend910B4", "ascend910b"),
        ("Ascend310P3", "ascend310p3"),
        ("", ""),
    ],
)
def test_version_of_a_soc_follows_from_its_name(monkeypatch: pytest.MonkeyPatch, name: str, version: str) -> None:
    monkeypatch.setattr(platform, "_soc_name", lambda: name)
    platform.soc_version.cache_clear()
    assert platform.soc_version() == version  # MindSpore knows none on a CPU
    platform.soc_version.cache_clear()


@pytest.fixture
def ascend_950(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which every kernel can be called."""
    monkeypatch.setattr(platform, "device_target", lambda: "Ascend")
    monkeypatch.setattr(platform, "soc_version", lambda: "ascend950")
    monkeypatch.setattr(platform, "refusal", lambda operator: None)


@pytest.mark.parametrize(
    ("job", "forward", "backward"),
    [
        (Job("mhc_pre", 4, 64, ms.bfloat16), None, None),
        (
            Job("mhc_pre", 4, 80, ms.bfloat16),
            None,
            "not a multiple of 64, which aclnnMhcPreBackward needs; use backend",
        ),
        (Job("mhc_pre", 4, 80, None), None, "or pad to 128"),
        (Job("mhc_pre", 4, 64, ms.float32), "x has dtype float32; the kernels take bfloat16 and float16", "float32"),
        (Job("mhc_pre", 2, 64, ms.float16), "num_streams 2 is not one of 4, 6, 8, which aclnnMhcPre needs", "of 4, 6"),
        (Job("mhc_sinkhorn", 4, num_iters=200), "num_iters 200 is not within 1 to 100", "not within 1 to 100"),
        (Job("mhc_sinkhorn", 4, num_iters=20, recipe="paper"), "recipe 'deepseek_v4', not 'paper'", "not 'paper'"),
        (Job("mhc_post", 4, 64, ms.float16, absent=("h_res",)), "null pointer", "null pointer"),
        (Job("mhc_post", 4, 64, ms.float16), None, None),
        (Job("mhc_pre_sinkhorn", 4, 4096, ms.float16, 20, absent=("gamma",)), 'precision="hf32" would allow it', None),
    ],
)
def test_kernels_refuse_what_they_cannot_do(
    ascend_950: None, job: Job, forward: Optional[str], backward: Optional[str]
) -> None:
    aclnn = registry.backends()[0]
    for direction, reason in ((FORWARD, forward), (BACKWARD, backward)):
        refusal = aclnn.refusal(job, direction)
        assert (refusal is None) == (reason is None)
        assert reason is None or (refusal is not None and reason in refusal.reason)
    assert (registry.choose("test", job, "auto").name == "aclnn") == (forward is None)
    if forward is None and backward is None:
        assert registry.choose("test", job, "aclnn").backward.name == "aclnn"
    else:
        with pytest.raises(ValueError, match="backend='aclnn' cannot be used"):
            registry.choose("test", job, "aclnn")


def test_forward_and_backward_are_chosen_one_by_one(ascend_950: None) -> None:
    choice = registry.choose("test", Job("mhc_pre", 4, 80, ms.bfloat16), "auto")
    assert (choice.forward.name, choice.backward.name) == ("aclnn", "composite")
    eager = registry.choose("test", Job("mhc_pre", 4, 64, ms.bfloat16), "auto", eagerly=True)
    assert (eager.forward.name, eager.backward.name) == ("composite", "composite")


def test_backward_whose_saved_tensors_the_forward_does_not_give_is_not_chosen(
    ascend_950: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the forward's kernel nothing was saved for the backward's."""
    only_backward = lambda operator: None if operator.name.endswith("Backward") else "missing"  # noqa: E731
    monkeypatch.setattr(platform, "refusal", only_backward)
    choice = registry.choose("test", Job("mhc_sinkhorn", 4, num_iters=20), "auto")
    assert (choice.forward.name, choice.backward.name) == ("composite", "composite")
    choice = registry.choose("test", Job("mhc_pre", 4, 64, ms.bfloat16), "auto")
    assert (choice.forward.name, choice.backward.name) == ("composite", "aclnn")


@pytest.fixture
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_said", set())
    monkeypatch.setattr(registry, "_warned", [])


def test_fall_back_says_why_once(ascend_950: None, nothing_said: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="ms_mhc"):
        for _ in range(3):
            registry.choose("test", Job("mhc_pre", 4, 80, ms.bfloat16), "auto")
            registry.choose("test", Job("mhc_sinkhorn", 4, num_iters=200), "auto")
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1
    assert "mhc_pre: the aclnn backend cannot be used, falling back: hidden_size 80" in said[0]


def test_nothing_is_said_where_no_kernel_is_expected(nothing_said: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="ms_mhc"):
        MhcPre(4, 8)(Tensor(np.ones((2, 4, 8), np.float32)))
    assert not [r.getMessage() for r in caplog.records if r.name == "ms_mhc"]


def test_kernel_refuses_to_be_made_where_it_cannot_be_called() -> None:
    with pytest.raises(RuntimeError, match="aclnnMhcPre: the device target is CPU, not Ascend"):
        AclnnKernel(MHC_PRE)


def test_environment_is_changed_only_while_a_callback_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "/somewhere"):
        for name in ("MS_COMPILER_CACHE_PATH", "ASCEND_CUSTOM_OPP_PATH"):
            if before is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, before)
        with custom._environment(MHC_PRE):
            assert Path(os.environ["MS_COMPILER_CACHE_PATH"]).is_dir()
        assert os.environ.get("MS_COMPILER_CACHE_PATH") == os.environ.get("ASCEND_CUSTOM_OPP_PATH") == before


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("version.cfg", "# CANN\nrunning=1\nVersion=[9.0.1:9.0]\n", "9.0.1:9.0"),
        ("opp/version.info", "Version=8.5.0\n", "8.5.0"),
        ("version.info", "nothing of the kind\n", None),
        (None, "", None),
    ],
)
def test_cann_states_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Optional[str], text: str, version: Optional[str]
) -> None:
    monkeypatch.delenv("ASCEND_OPP_PATH", raising=False)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    if file:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    assert platform.cann_version() == version
    monkeypatch.delenv("ASCEND_HOME_PATH")
    assert platform.cann_version() is None


def test_a_library_of_another_machine_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64/libopapi.so").write_bytes(b"no library")
    monkeypatch.delenv("ASCEND_OPP_PATH", raising=False)
    monkeypatch.delenv("ASCEND_CUSTOM_OPP_PATH", raising=False)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert list(platform._library_paths()) == [tmp_path / "lib64/libopapi.so"]
    assert platform._loaded_libraries() == []
    assert platform._soc_name() == ""


@pytest.mark.parametrize("folder", ["t m p", "a:b"])
def test_callbacks_go_where_mindspore_can_compile_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / folder).mkdir()
    monkeypatch.setattr(custom.folders.tempfile, "tempdir", str(tmp_path / folder))
    monkeypatch.setattr(custom, "_folder", [])
    assert not set(custom._process_folder()) & set(" :")


def test_folders_for_callbacks_go_with_the_process(tmp_path: Path) -> None:
    program = """
from pathlib import Path
from aclnn_adapter import custom
made = []
for _ in range(2):
    made.append(custom._process_folder())
    custom._folder.clear()
assert all(Path(folder).parent == Path.cwd() for folder in made), made
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(custom.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    assert not list(tmp_path.glob("aclnn_adapter_*"))


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=str)
def test_mindspore_reads_the_c_types_of_the_contract_whatever_the_header_looks_like(
    cann: Path, operator: Operator
) -> None:
    place(cann, operator, f"aclnnStatus ACLNN_CALL {operator.symbols[0]} (\nIN const aclTensor *x);")
    with custom._environment(operator):
        assert CustomInfoGenerator(operator.name).get_aclnn_api_types() == list(operator.c_types)


def test_kernels_are_refused_where_mindspore_cannot_compile_their_call(
    cann: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "device_target", lambda: "Ascend")
    monkeypatch.setattr(platform, "soc_version", lambda: "ascend950")
    monkeypatch.setattr(platform, "_cann_refusal", lambda *_: None)
    assert f"MindSpore wants {cann}/include/acl/acl_base.h" in str(platform.refusal(MHC_PRE))
    for home in (cann, cann.with_name("c ann"), cann.with_name("oppo") / "cann"):
        (home / "include/acl").mkdir(parents=True)
        (home / "include/acl/acl_base.h").touch()
    platform._compiling_refusal.cache_clear()  # it was asked before the header was there
    assert platform.refusal(MHC_PRE) is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert "with g++, which is not on the PATH" in str(platform.refusal(MHC_PRE))
    monkeypatch.setenv("ASCEND_OPP_PATH", str(cann.with_name("c ann") / "opp"))
    assert "cannot use CANN under a path with a blank" in str(platform.refusal(MHC_PRE))
    monkeypatch.setenv("ASCEND_OPP_PATH", str(cann.with_name("oppo") / "cann/opp"))
    assert "so MindSpore wants" in str(platform.refusal(MHC_PRE))
    monkeypatch.delenv("ASCEND_OPP_PATH")
    assert "ASCEND_OPP_PATH is not set" in str(platform.refusal(MHC_PRE))


def run(*arguments: str) -> List[str]:
    done = subprocess.run([sys.executable, "-m", "ms_mhc", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_info_names_versions_and_the_backend_of_each_operator() -> None:
    lines = run("info")
    text = "\n".join(lines)
    assert f"MindSpore   {ms.__version__}" in text
    for operator in info.OPERATORS:
        assert any(line.split()[:1] == [operator] for line in lines), text
    assert "not aclnn: the device target is CPU, not Ascend" in text


def test_info_tells_why_for_the_sizes_that_were_asked_for(
    ascend_950: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "cann_home", lambda: None)
    assert __main__.main(["info", "--num-streams", "4", "--hidden-size", "80", "--dtype", "bfloat16"]) == 0
    out = capsys.readouterr().out
    assert "hidden_size 80 is not a multiple of 64" in out
    assert "mhc_sinkhorn  aclnn in compiled graphs, MindSpore ops when called eagerly" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--num-streams=0",), "argument --num-streams: '0' is not a whole number of at least 1"),
        (("--hidden-size=-4",), "argument --hidden-size: '-4' is not a whole number of at least 1"),
        (("--device=GPU",), "ms_mhc info: MindSpore cannot use --device GPU here: Unsupported device target GPU."),
    ],
)
def test_info_refuses_what_cannot_be_in_one_line(
    arguments: Tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = __main__.main(["info", *arguments])
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("reader", "status", "said"), [("closed", 141, ""), ("full", 1, "ms_mhc info: cannot write:")])
def test_info_into_a_closed_pipe_or_a_full_disk(reader: str, status: int, said: str) -> None:
    read, write = os.pipe() if reader == "closed" else (-1, os.open("/dev/full", os.O_WRONLY))
    if reader == "closed":
        os.close(read)
    program = (sys.executable, "-m", "ms_mhc", "info")
    done = subprocess.run(program, stdout=write, stderr=subprocess.PIPE, text=True, check=False, timeout=300)
    os.close(write)
    assert done.returncode == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_import_writes_nothing_into_the_current_folder(tmp_path: Path) -> None:
    program = "import ms_mhc, numpy, mindspore as ms; ms_mhc.MhcPre(4, 8)(ms.Tensor(numpy.ones((2, 4, 8), 'float32')))"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True)
    assert list(tmp_path.iterdir()) == []


def test_named_backend_runs_or_raises() -> None:
    inputs: Any = [Tensor(np.zeros(s, np.float32)) for s in ((2, 2, 3), (8, 6), (3,), (8,))]
    assert mhc_pre(*inputs, backend="composite")[0].shape == (2, 3)
    with pytest.raises(RuntimeError, match="not Ascend"):
        mhc_pre(*inputs, backend="aclnn")


def test_graph_engine_gets_mindspore_ops(ascend_950: None, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("mhc_pre", 4, 64, ms.bfloat16)
    for config, name in (
        ({"jit_level": "O0"}, "aclnn"),
        ({"jit_level": "O1"}, "aclnn"),
        ({"jit_level": "O2"}, "composite"),
    ):
        monkeypatch.setattr(ms.context, "get_jit_config", lambda config=config: config)
        assert registry.choose("test", job, "auto").name == name
    with pytest.raises(RuntimeError, match=r"at jit_level O2 graphs go to CANN's graph engine.*use O0 or O1"):
        registry.choose("test", job, "aclnn")
