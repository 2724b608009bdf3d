"""Faults in the reference, the operators in MindSpore ops, what joins them, and the tools."""

from __future__ import annotations

from tests.mutation.edit import Killer, edits


def _eager(file: str, backend: str = "composite") -> Killer:
    """The tests of one operator, called from Python."""
    return Killer(f"{file}, eager", (f"tests/{file}", "-k", f"pynative and {backend}"))


REFERENCE = Killer("reference", ("tests/test_reference.py",))
STABILITY = Killer(
    "stability", ("tests/test_stability.py", "-k", "gain or nan_is_seen or matrices_that or nan_is_written")
)
ACCURACY = Killer("yardstick", ("tests/test_accuracy.py",))
CONTRACT = Killer("contract", ("tests/test_operators.py",))
CHECKS = Killer("checks", ("tests/test_checks.py",))
PRE, SINKHORN, POST = (_eager(f"test_{name}.py") for name in ("mhc_pre", "mhc_sinkhorn", "mhc_post"))
SCALING = Killer(
    "composite Sinkhorn, eager",
    (
        *("tests/test_mhc_sinkhorn.py", "tests/test_composite_numerics.py"),
        *("-k", "composite and (pynative or 100-)"),
    ),
)
FLAT = Killer("composite Sinkhorn, graph", ("tests/test_mhc_sinkhorn.py", "-k", "composite and graph"))
CPU = _eager("test_mhc_pre.py", "cpu")
HEAD = Killer("head", ("tests/test_mhc_head.py",))
CONNECTION = Killer("connection", ("tests/test_hyper_connection.py", "-k", "pynative or n0"))
START = Killer("initial values", ("tests/test_mhc_pre.py", "-k", "initial or seed"))
PROBE = Killer("probe", ("tests/test_probe.py",))
BENCH = Killer(
    "benchmark",
    ("tests/test_bench.py", "-k", "refused or missing or ours_fails or least or saves or ratios or connection"),
)
SELFTEST = Killer("selftest", ("tests/test_selftest.py", "-k", "not personal"))
DIRECT = Killer("direct calls", ("tests/test_direct.py", "tests/test_eager.py", "-k", "test_direct or second and cpu"))
TURNS = Killer("turns of threads", ("tests/test_threads.py", "-k", "turns or another or forked"))
EXTENSION = Killer("extension for eager calls", ("tests/test_extension.py",))

EDITS = [
    *edits(
        "ms_mhc/backends/direct.py",
        DIRECT,
        ("t if t.is_contiguous() else t.contiguous()", "t"),
        ("if status:", "if status > 4:"),
        (".bytes > MOST_BYTES", ".bytes >= MOST_BYTES"),
        ("*(r.ctypes.data for r in results)", "*(r.ctypes.data for r in reversed(results))"),
    ),
    *edits(
        "ms_mhc/backends/cpu.py",
        DIRECT,
        ("platform.called_eagerly() and not platform.recording():", "platform.called_eagerly():"),
    ),
    *edits(
        "ms_mhc/operators/precision.py",
        DIRECT,
        ('if getattr(value, "has_init", False):', 'if name == "x" and getattr(value, "has_init", False):'),
    ),
    *edits(
        "ms_mhc/operators/precision.py",
        TURNS,
        ("    with _turn[0]:\n", "    if _turn[0]:\n"),
        ("_turn = [threading.RLock()]", "_turn = [threading.Semaphore()]"),
        ("    _turn[0] = threading.RLock()", "    pass"),
    ),
    *edits(
        "aclnn_adapter/extension.py",
        EXTENSION,
        ("fcntl.flock(lock, fcntl.LOCK_EX)", "fcntl.flock(lock, fcntl.LOCK_SH)"),
        ("sys.version, platform.cann_version(),", "sys.version,"),
        ("return library.is_file() and not cut_short(library)", "return library.is_file()"),
    ),
    *edits(
        "aclnn_adapter/folders.py",
        EXTENSION,
        ("folder.mkdir(mode=0o700, exist_ok=True)", "folder.mkdir(exist_ok=True)"),
    ),
    *edits(
        "ms_mhc/reference.py",
        REFERENCE,
        ("np.mean(x**2, axis=(-2, -1)) + norm_eps", "np.mean(x_rs**2, axis=-1) + norm_eps"),
        ("h_pre = _sigmoid(alpha[0] * h_pre_1 + bias_pre) + hc_eps", "h_pre = _sigmoid(alpha[0] * h_pre_1 + bias_pre)"),
        ("2.0 * _sigmoid(alpha[1] * h_post_1 + bias_post)", "2.0 * _sigmoid(alpha[0] * h_post_1 + bias_post)"),
        ("h_pre_2_grad = h_pre_grad * s * (1.0 - s)", "h_pre_2_grad = h_pre_grad * h_pre * (1.0 - h_pre)"),
        ("grad_h_post * h_post * (1.0 - h_post / 2.0)", "grad_h_post * h_post * (1.0 - h_post)"),
        (
            "- (inv_rms_grad * inv_rms**3 / (n * d))[..., None, None] * x\n",
            "- (inv_rms_grad * inv_rms**3 / (n * d))[..., None, None] * x * scale\n",
        ),
        ("- (inv_rms_grad * inv_rms**3 / (n * d))[..., None, None] * x\n", ""),
        ("inv_rms_grad * inv_rms**3", "inv_rms_grad * inv_rms**2"),
        ("grad_phi = h_mix_grad.T @ (x * scale)", "grad_phi = h_mix_grad.T @ x"),
        ("        + x_rs_grad * scale\n", "        + x_rs_grad\n"),
        ("grad_x = grad_x + _double(grad_x_post)", "grad_x = grad_x - _double(grad_x_post)"),
        (
            "np.sum((x * x_rs_grad).reshape(rows, n, d), axis=0)",
            "np.sum((x * x_rs_grad * scale).reshape(rows, n, d), axis=0)",
        ),
        ("axes = [-2] + [-1, -2] * (num_iters - 1)", "axes = [-2] + [-1, -2] * num_iters"),
        ("exp / exp.sum(axis=-1, keepdims=True) + eps", "exp / exp.sum(axis=-1, keepdims=True)"),
        ("total = y.sum(axis=axis, keepdims=True) + eps", "total = y.sum(axis=axis, keepdims=True)"),
        (
            "return softmax * (grad - np.sum(grad * softmax, axis=-1, keepdims=True))",
            "return start * (grad - np.sum(grad * start, axis=-1, keepdims=True))",
        ),
        ("return grad - largest * grad.sum(axis=-1, keepdims=True)", "return grad"),
        (
            "mixed = x if h_res is None else np.swapaxes(_double(h_res), -1, -2) @ x",
            "mixed = x if h_res is None else _double(h_res) @ x",
        ),
        (
            "grad_x=grad if h_res is None else _double(h_res) @ grad",
            "grad_x=grad if h_res is None else np.swapaxes(_double(h_res), -1, -2) @ grad",
        ),
        ("grad_h_res=x @ np.swapaxes(grad, -1, -2)", "grad_h_res=grad @ np.swapaxes(x, -1, -2)"),
        (
            "gates = _sigmoid(scale * (flat @ phi.T) * inv_rms + bias) + hc_eps",
            "gates = _sigmoid(scale * (flat @ phi.T) * inv_rms + bias)",
        ),
    ),
    *edits(
        "ms_mhc/operators/pre.py",
        PRE,
        ("sum_of_row(flat * flat) / (n * d) + norm_eps)\n    h_mix", "sum_of_row(flat * flat) / (n * d))\n    h_mix"),
        ("h_2 = h_mix * inv_rms * _alpha_of_each(alpha, n)", "h_2 = h_mix * _alpha_of_each(alpha, n)"),
        ("h_pre = gates[:, :n] + hc_eps", "h_pre = gates[:, :n]"),
        ("h_post = 2.0 * gates[:, n:]", "h_post = 2.0 * gates[:, :n]"),
        ("(n, n, n * n), axis=1)", "(n, n * n, n), axis=1)"),
        ("s = h_pre - hc_eps\n", "s = h_pre\n"),
        ("h_pre_2_grad = h_pre_grad * s * ((1.0 - h_pre) + hc_eps)", "h_pre_2_grad = h_pre_grad * s * (1.0 - h_pre)"),
        ("alpha_terms = h_2_grad * (h_mix * inv_rms)", "alpha_terms = h_2_grad * h_mix"),
        ("h_mix_grad = h_2_grad * alpha_of_each * inv_rms\n", "h_mix_grad = h_2_grad * alpha_of_each\n"),
        ("    grad_x = plus_bmm(grad_x, coefficient.reshape(-1, 1, 1) * unit_matrix(n), x)\n", ""),
        ("* inv_rms * inv_rms * (-1.0 / (n * d))", "* inv_rms * inv_rms * (1.0 / (n * d))"),
        ("        phi = phi * scale\n", ""),
        ("        grad_phi = grad_phi * scale\n", ""),
        ("grad_x = grad_x + float32(grad_x_post).reshape(-1, n, d)", "grad_x = grad_x"),
        ("mint.sum(phi * grad_phi, 0).reshape(n, d)", "mint.sum(grad_phi, 0).reshape(n, d)"),
        ("sum_over_tokens(alpha_terms)", "alpha_terms[0]"),
    ),
    *edits(
        "ms_mhc/operators/scaling.py",
        SCALING,
        ("m = small.matrices(ops.softmax(h_res, -1) + eps)", "m = small.matrices(ops.softmax(h_res, -1))"),
        ("u = small.of_rows(u, eps, m, c, n)", "u = small.of_rows(u, 0.0, m, c, n)"),
        ("v = small.of_columns(v, eps, m, m_t, r, n)", "v = small.of_columns(v, 0.0, m, m_t, r, n)"),
        ("c = _reciprocal(v + carried[k] if", "c = _reciprocal(v if"),
        ("if k > 0 or row_first:", "if k > 0:"),
        ("    logs = logs + 0.0 * mint.sum(ops.exp(logs), (-2, -1), True)\n", ""),
        ("longest = int(-math.log(_LEAST) / math.log(max(n, 2)))", "longest = num_iters"),
        ("            share_of_gu = 1.0\n", "            share_of_gu = eps\n"),
        (
            "return grad - m * small.outer_products(left, right, n)",
            "return grad + m * small.outer_products(left, right, n)",
        ),
        ("        grad = small.plain(grad, n) * (softmax / m)\n", "        grad = small.plain(grad, n)\n"),
        ("    return grad - largest * mint.sum(grad, -1, True)\n", "    return grad\n"),
    ),
    *edits(
        "ms_mhc/operators/small_matrices.py",
        SINKHORN,
        ("    return of_rows(before, share, m_t, v, n)\n", "    return of_rows(before, share, m, v, n)\n"),
    ),
    *edits(
        "ms_mhc/operators/small_matrices.py",
        FLAT,
        (
            "return _flat_columns(m, v, n) + before * share",
            "return _flat_rows(m, v, n) + before * share",
        ),
    ),
    *edits(
        "ms_mhc/operators/post.py",
        POST,
        ("x = bmm_tn(h_res.reshape(-1, n, n), x)", "x = bmm(h_res.reshape(-1, n, n), x)"),
        ("grad_x = bmm(h_res.reshape(-1, n, n), grad)", "grad_x = bmm_tn(h_res.reshape(-1, n, n), grad)"),
        ("bmm_nt(float32(x).reshape(-1, n, d), grad)", "bmm_nt(grad, float32(x).reshape(-1, n, d))"),
        (
            "grad_h_out = bmm(h_post.reshape(-1, 1, n), grad)",
            "grad_h_out = bmm(h_post.reshape(-1, 1, n) * 0.5, grad)",
        ),
    ),
    *edits(
        "ms_mhc/operators/collapse.py",
        HEAD,
        ("* inv_rms * scale + bias) + self.hc_eps", "* inv_rms * scale + bias)"),
        ("* inv_rms * scale + bias)", "* scale + bias)"),
        ("/ (n * d) + self.norm_eps)", "/ (n * d))"),
    ),
    *edits(
        "ms_mhc/operators/initial.py",
        START,
        (
            "-math.log(num_streams - 1) if num_streams > 1 else SATURATED",
            "-math.log(3) if num_streams > 1 else SATURATED",
        ),
        ("SATURATED = 20.0", "SATURATED = 0.0"),
        ("RES_OFF_DIAGONAL = -5.0", "RES_OFF_DIAGONAL = 5.0"),
        ("PHI_STD = 1e-4", "PHI_STD = 1e-2"),
    ),
    *edits(
        "ms_mhc/operators/ends.py",
        CONNECTION,
        ("ops.cast(x, ms.float32), -2) / self.num_streams", "ops.cast(x, ms.float32), -2)"),
    ),
    *edits(
        "ms_mhc/parallel.py",
        CHECKS,
        ("if layout is None:\n        raise", "if False:\n        raise"),
        ("if rank is not None and len(axes) != rank:", "if rank is not None and len(axes) < 3:"),
        ("if axes[-2:] != (WHOLE, WHOLE):", "if axes[-1] != WHOLE and axes[-2] != WHOLE:"),
    ),
    *edits(
        "ms_mhc/hyper_connection.py",
        CONNECTION,
        ("x_next = self.post(x, h_res, h_out, h_post)", "x_next = self.post(x, h_res, h_in, h_post)"),
        ("x_next = self.post(x, h_res, h_out, h_post)", "x_next = self.post(x, None, h_out, h_post)"),
        ("(pre.norm_eps, pre.hc_eps, steps.eps,", "(pre.norm_eps, steps.eps, pre.hc_eps,"),
    ),
    *edits(
        "ms_mhc/joint.py",
        PRE,
        ("            return out + (inputs[0],)\n", "            return out + (inputs[0] * 2,)\n"),
        (
            "grads = [found[place] if place >= 0 else None for place in joined.gradients]",
            "grads = [found[0] if place >= 0 else None for place in joined.gradients]",
        ),
        ('share and "grad_" + RESIDUAL not in backward.inputs', "share"),
    ),
    *edits(
        "ms_mhc/backends/cpu.py",
        CPU,
        (
            "np.array([mask, csrc.version(), *scalars], np.float32)",
            "np.array([mask, csrc.version(), *scalars[::-1]], np.float32)",
        ),
        (
            "sum(1 << bit for bit, name in enumerate(optional) if name in present)",
            "sum(1 << bit for bit, name in enumerate(optional) if name not in present)",
        ),
    ),
    *edits(
        "ms_mhc/stability.py",
        STABILITY,
        ("np.abs(h).sum(axis=-1).max(axis=-1)", "np.abs(h).sum(axis=-2).max(axis=-1)"),
        ("np.abs(h).sum(axis=-2).max(axis=-1)", "h.sum(axis=-2).max(axis=-1)"),
        ("product = product @ h\n", "product = h @ product\n"),
        ("products.append(h @ products[-1])", "products.append(products[-1] @ h)"),
        ("return products[::-1]", "return products"),
        ("strict_json.dumps(row)", "__import__('json').dumps(row)"),
    ),
    *edits(
        "ms_mhc/accuracy.py",
        ACCURACY,
        ("least - (_SIGNIFICAND_BITS[dtype] - 1)", "least - (_SIGNIFICAND_BITS[dtype] - 2)"),
        ("np.nan_to_num(np.abs(value - target), nan=np.inf)", "np.nan_to_num(np.abs(value - target), nan=0.0)"),
        ("FLOAT32_NOISE = 5e-6", "FLOAT32_NOISE = 5e-5"),
    ),
    *edits(
        "ms_mhc/checks.py",
        CHECKS,
        ("if not 0 <= value <= _MOST_FLOAT32:", "if not value <= _MOST_FLOAT32:"),
        ("    if value < 1:\n", "    if value < 0:\n"),
        ("if isinstance(value, bool) or not isinstance(value, Integral):", "if not isinstance(value, Integral):"),
        (
            "got is None or want is None or got == want for got, want",
            "got is None or want is None or got >= want for got, want",
        ),
        ("if sizes is not None and sizes != (n, d):", "if False:"),
        ("    if 0 in spec.shape:\n", "    if 0 in spec.shape[1:]:\n"),
    ),
    *edits(
        "aclnn_adapter/operators.py",
        CONTRACT,
        ("if hidden_size % self.hidden_size_multiple:", "if False:"),
        ("if not least <= num_iters <= most:", "if not least <= num_iters < most:"),
        (
            "if self.max_hidden_size is not None and hidden_size > self.max_hidden_size:",
            "if self.max_hidden_size is not None and hidden_size >= self.max_hidden_size:",
        ),
        ("num_gates(streams),)", "num_gates(streams) - streams,)"),
        (
            '    _in("gammaOptional", "float32", "N", "D", optional=True),\n    _attr("normEps", "double", 1e-6),\n    _attr("hcEps", "double", 1e-6),\n',
            '    _in("gammaOptional", "float32", "N", "D", optional=True),\n    _attr("hcEps", "double", 1e-6),\n    _attr("normEps", "double", 1e-6),\n',
        ),
    ),
    *edits(
        "ms_mhc/probe.py",
        PROBE,
        ("return merge_streams(seen[-1])", "return merge_streams(seen[0]) * 2"),
        ('os.environ.pop("MS_JIT", None)', 'del os.environ["MS_JIT"]'),
        (
            "collected.append((names[id(post)][0], matrix))",
            "collected.append((names[id(post)][0], matrix.swapaxes(-1, -2)))",
        ),
    ),
    *edits(
        "ms_mhc/bench/contenders.py",
        BENCH,
        ("wrong = int(np.count_nonzero(~np.isfinite(result)))", "wrong = int(np.count_nonzero(np.isinf(result)))"),
        ("    if len(got) != len(want):\n", "    if False:\n"),
    ),
    *edits(
        "ms_mhc/bench/run.py",
        BENCH,
        ("if contender.name != OURS and OURS not in steps:", "if False:"),
        ("return None if error <= allowed else", "return None if True else"),
    ),
    *edits(
        "ms_mhc/selftest/covering.py",
        SELFTEST,
        (
            "left = [pair for pair in left if pair not in covered]",
            "left = [pair for pair in left[2:] if pair not in covered]",
        ),
    ),
    *edits(
        "ms_mhc/selftest/report.py",
        SELFTEST,
        ("good = ratios[worst] <= 1", "good = not ratios[worst] > 1"),
        (
            'sum(check["status"] != "ok" for check in self.checks)',
            'sum(check["status"] == "wrong" for check in self.checks)',
        ),
        ('text = _PATH.sub(".../", text)', "text = text"),
    ),
    *edits(
        "ms_mhc/selftest/machine.py",
        SELFTEST,
        ("        _context().set_param(ms_ctx_param.jit_level, level)\n", ""),
    ),
]
