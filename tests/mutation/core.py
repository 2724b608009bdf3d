"""Faults in the C++ core."""

from __future__ import annotations

from tests.mutation.edit import Killer, edits

CORE = Killer("core test", isa="baseline")
AVX2 = Killer("core test, avx2", isa="avx2")
AVX512 = Killer("core test, avx512", isa="avx512")
INTERFACE = Killer("C functions", ("tests/test_core_interface.py",), isa="baseline")

EDITS = [
    *edits(
        "ms_mhc/csrc/pre_forward_kernels.h",
        CORE,
        ("static_cast<double>(l.nd) + static_cast<double>(a.norm_eps)", "static_cast<double>(l.nd)"),
        ("squares[t] / static_cast<double>(l.nd)", "squares[t] / static_cast<double>(l.d)"),
        ("a.alpha[k < n ? 0 : 1]", "a.alpha[k < n ? 1 : 0]"),
        (
            "static_cast<float>(gates[t * 2 * n + k] + static_cast<double>(a.hc_eps))",
            "static_cast<float>(gates[t * 2 * n + k])",
        ),
        ("static_cast<float>(2.0 * gates[t * 2 * n + n + k])", "static_cast<float>(gates[t * 2 * n + n + k])"),
        ("mix[(2 * n + k) * kTokenBlock + t]) * inv_rms[t]", "mix[(2 * n + k) * kTokenBlock + t])"),
        ("static_cast<double>(a.alpha[2]) + static_cast<double>(a.bias[2 * n + k])", "static_cast<double>(a.alpha[2])"),
        ("static_cast<double>(a.bias[2 * n + k])", "static_cast<double>(a.bias[n + k])"),
        (
            "a.h_mix[token * f + k] = mix[k * kTokenBlock + t];",
            "a.h_mix[token * f + k] = mix[k * kTokenBlock + t] * static_cast<float>(inv_rms[t]);",
        ),
        ("v = 1.0 / (1.0 + exp(-v));", "v = 1.0 / (1.0 + exp(v));"),
        ("for (; k + kRows <= f; next(kRows))", "for (; k + kRows < f; next(kRows))"),
        ("sums[r * kTokens + t] += x_t * rows[r];", "sums[r * kTokens + t] -= x_t * rows[r];"),
        ("load_some(x + i * d + c, end - c);", "load_some(x + c, end - c);"),
        ("a.h_pre[token * n + k] = weight[k];", "a.h_pre[token * n + k] = weight[0];"),
    ),
    *edits(
        "ms_mhc/csrc/pre_backward_kernels.h",
        CORE,
        ("(h - a.hc_eps) * ((1.0f - h) + a.hc_eps)", "h * (1.0f - h)"),
        ("(h - a.hc_eps) * ((1.0f - h) + a.hc_eps)", "(h - a.hc_eps) * (1.0f - h)"),
        ("* h * (1.0f - 0.5f * h);", "* h * (1.0f - h);"),
        (
            "const float factor = static_cast<float>(alpha * inv_rms);",
            "const float factor = static_cast<float>(alpha);",
        ),
        ("sums[f + part] += dot * inv_rms;", "sums[f + part] += dot;"),
        ("grad_inv += dot * alpha;", "grad_inv += dot;"),
        ("static_cast<float>(-grad_inv * inv_rms * inv_rms * inv_rms / static_cast<double>(l.nd))", "0.0f"),
        ("-grad_inv * inv_rms * inv_rms * inv_rms", "grad_inv * inv_rms * inv_rms * inv_rms"),
        ("-grad_inv * inv_rms * inv_rms * inv_rms", "-grad_inv * inv_rms * inv_rms"),
        (
            "return h_pre * in + of_x * load(x + c) + load(product + c) + post;",
            "return h_pre * in + of_x * load(x + c) + load(product + c);",
        ),
        ("return h_pre * in + of_x * load(x + c)", "return h_pre * in"),
        ("gates.of_x[row + t]", "gates.of_x[row]"),
        ("static_cast<float>(sum[c] * static_cast<Sum>(gamma[c]))", "static_cast<float>(sum[c])"),
        ("static_cast<double>(sum[c]) * static_cast<double>(phi[c])", "static_cast<double>(sum[c])"),
        ("a.h_pre[(token + t) * l.n + i], grad_h_in", "a.h_pre[(token + t) * l.n], grad_h_in"),
        ("sums[k] += gate;", "sums[k] = gate;"),
        ("const int64_t first_of_part[4] = {0, n, 2 * n, f};", "const int64_t first_of_part[4] = {0, n, n, f};"),
        ("store(to, kAdd ? load(to) + sums[r][v] : sums[r][v]);", "store(to, sums[r][v]);"),
        ("case 5: return product_rows<5, kAdd>", "case 5: return product_rows<4, kAdd>"),
    ),
    *edits(
        "ms_mhc/csrc/tile.h",
        CORE,
        ("to[c] *= gamma[column + c];", "to[c] *= 1;"),
        ("to[c] *= gamma[column + c];", "to[c] *= gamma[c];"),
    ),
    *edits(
        "ms_mhc/csrc/pre_forward_kernels.h",
        CORE,
        ("PhiStrip phi{a.phi + l.column(tile), l.nd, kTile};", "PhiStrip phi{a.phi + l.column(tile), l.d, kTile};"),
        (
            "const bool in_place = tokens <= kMixTokens && !a.gamma && l.d % kTile == 0;",
            "const bool in_place = tokens <= kMixTokens;",
        ),
        ("squares[strip * step + begin + t]", "squares[begin + t]"),
        (
            "const float *from = mixes + (strip * l.f + k) * step + begin;",
            "const float *from = mixes + (strip * l.f + k) * step;",
        ),
    ),
    *edits(
        "ms_mhc/csrc/pre.cc",
        CORE,
        ("sums.get()[k] += gates.sums[block * (f + 3) + k];", "sums.get()[k] += gates.sums[k];"),
        (
            "args.grad_alpha[i] = static_cast<float>(sums.get()[f + i]);",
            "args.grad_alpha[i] = static_cast<float>(sums.get()[i]);",
        ),
    ),
    *edits(
        "ms_mhc/csrc/post_kernels.h",
        CORE,
        (
            "for (int i = 0; i < kN; ++i) sum += h_res[i * kN + j] * streams[i];",
            "for (int i = 0; i < kN; ++i) sum += h_res[j * kN + i] * streams[i];",
        ),
        (
            "for (int64_t i = 0; i < n; ++i) sum += h_res[i * n + j] * part.get(x + i * d + c);",
            "for (int64_t i = 0; i < n; ++i) sum += h_res[j * n + i] * part.get(x + i * d + c);",
        ),
        ("h_post[j] * h + part.get(x + j * d + c)", "h_post[j] * h"),
        (
            "for (int j = 0; j < kN; ++j) sum += h_res[i * kN + j] * streams[j];",
            "for (int j = 0; j < kN; ++j) sum += h_res[j * kN + i] * streams[j];",
        ),
        (
            "for (int64_t j = 0; h_res && j < n; ++j) sum += h_res[i * n + j]",
            "for (int64_t j = 0; h_res && j < n; ++j) sum += h_res[j * n + i]",
        ),
        (
            "for (int j = 0; j < kN; ++j) sum += h_post[j] * streams[j];",
            "for (int j = 0; j < kN; ++j) sum += h_post[0] * streams[j];",
        ),
        ("(r == n ? grad_h_post : grad_h_res + r * n) + j", "(r == n ? grad_h_post : grad_h_res + r * n)"),
        ("rows[count] = r == n ? h_out : x + r * d;", "rows[count] = r == n ? h_out : x;"),
        ("sum = h_res ? Vec{} : streams[i];", "sum = Vec{};"),
        ("for (; j + 2 <= n; j += 2) dot_columns<2>", "for (; j + 2 < n; j += 2) dot_columns<1>"),
    ),
    *edits(
        "ms_mhc/csrc/sinkhorn_kernels.h",
        CORE,
        ("for (int64_t k = 0; k < n() * n(); ++k) y[k] += eps;", ";"),
        ("grad[k * stride] = (grad[k * stride] - dot) * inverse;", "grad[k * stride] = grad[k * stride] * inverse;"),
        ("y[k * stride] *= sum;", ";"),
        ("if (recipe == Recipe::kPaper) undo_rows(y, grad, sums);", ";"),
        ("g = (g - dot) * y[i * n() + j];", "g = g * y[i * n() + j];"),
        ("first_max[i] == j ? dot : Doubles{}", "first_max[i] == j ? Doubles{} : Doubles{}"),
        ("at = row[j] > top ? Longs{} + j : at;", "at = row[j] >= top ? Longs{} + j : at;"),
        ("sum += row[j] = exp(row[j] - top);", "sum += row[j] = exp(row[j]);"),
        ("from[(lane < count ? lane : count - 1) * nn]", "from[0]"),
        (
            "for (int64_t k = 1; k < num_iters; ++k) {\n      divide_rows",
            "for (int64_t k = 0; k < num_iters; ++k) {\n      divide_rows",
        ),
        (
            "for (int64_t lane = 0; lane < count; ++lane) to[lane * nn]",
            "for (int64_t lane = 0; lane + 1 < count; ++lane) to[lane * nn]",
        ),
    ),
    *edits(
        "ms_mhc/csrc/vector.h",
        CORE,
        ("(bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16", "bits >> 16"),
        ("(bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16", "(bits + 0x8000u) >> 16"),
        ("narrow((v != v) ? quiet : rounded)", "narrow(rounded)"),
        ("0xfffu + ((magnitude >> 13) & 1u)", "0x1000u"),
        ("half = magnitude > 0x7f800000u ? Words{} + 0x7e00u : half;", ";"),
        (
            "const Words finite = magnitude < 0x400u ? reinterpret_cast<Words>(small) : normal;",
            "const Words finite = normal;",
        ),
        ("const Words special = 0x7f800000u |", "const Words special = 0x7f000000u |"),
        ("const Words quiet = (bits >> 16) | 0x40u;", "const Words quiet = bits >> 16 & 0xff80u;"),
        ("p = p * r + 1.0 / 6.0;", "p = p * r + 1.0 / 6.1;"),
    ),
    *edits(
        "ms_mhc/csrc/vector.h",
        AVX2,
        (
            "_mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT)",
            "_mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_ZERO)",
        ),
        ("_mm256_permute4x64_epi64(packed, 0x08)", "_mm256_permute4x64_epi64(packed, 0x04)"),
    ),
    *edits(
        "ms_mhc/csrc/vector.h",
        AVX512,
        (
            "_mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT)",
            "_mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(v), _MM_FROUND_TO_ZERO)",
        ),
        ("_mm512_maskz_cvtepi32_epi16(0xffff,", "_mm512_maskz_cvtepi32_epi16(0x7fff,"),
    ),
    *edits(
        "ms_mhc/csrc/mindspore_aot.cc",
        INTERFACE,
        ("t.scalars(&a.norm_eps, &a.hc_eps);", "t.scalars(&a.hc_eps, &a.norm_eps);"),
        ("if (mask_ >= bit_) throw Refused{kWrongScalar};", ""),
        ("if (next_ != given_.count) throw Refused{kWrongCount};", ""),
        ("if (size != size_of(*dim)) throw Refused{kWrongShape};", ""),
        (
            "case kF: return sizes_.streams * (sizes_.streams + 2);",
            "case kF: return sizes_.streams * (sizes_.streams + 3);",
        ),
        ("value >= least && value <= most && value == std::floor(value)", "value >= least && value <= most"),
        ("for (int i = 0; i < ndim - 2; ++i) sizes_.tokens *= shape[i];", "sizes_.tokens = shape[0];"),
    ),
]
