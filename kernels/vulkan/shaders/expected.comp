#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Expected Attention (lukv's expected_attention.go). MODE
//
//   0  z[q][t] = k·mean[q] + Σ_a k_a Σ_{b≥a} form[q][a][b]·k_b, and per block of
//      256 slots the largest z and the sum of e^(z - largest)
//   1  the same two over all blocks of a query head, merged in ascending order
//   2  score[h][t] = (mean over the group of softmax(z)[t] + eps)·|v_t|, without
//      the last factor and eps if norm is 0; +Inf for the sinks

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint T = 2;
layout(constant_id = 1) const uint D = 128;
layout(constant_id = 2) const uint PE = 64;
layout(constant_id = 3) const uint MODE = 0;

const uint DP = (D + 7) / 8 * 8;

layout(push_constant) uniform P {
	uvec2 z, mean, form, part, scores, heads, sinks; // part: [H][blocks+1][2]
	uint head0, group, ldz, ldo, blocks, norm, held;
	float eps;
};

shared float top[256];

void main() {
	uint tid = gl_LocalInvocationID.x, b = gl_WorkGroupID.x, q = gl_WorkGroupID.y;
	uint h = MODE == 2 ? q : q / group;
	Head hd = Heads(heads).v[head0 + h];
	uint n = hd.start + held, slot = b * 256 + tid;
	uint sink = isNull(sinks) ? 0 : InU(sinks).v[h];
	OutF Z = OutF(z);
	OutF Pt = OutF(part);
	if (MODE == 1) {
		if (tid > 0) return;
		precise float M = -3.0e38, S = 0.0;
		for (uint i = 0; i < (n + 255) / 256; i++) {
			float m = Pt.v[(q * (blocks + 1) + i) * 2], s = Pt.v[(q * (blocks + 1) + i) * 2 + 1];
			float mm = max(M, m);
			precise float u = S * expo(M - mm), w = s * expo(m - mm);
			S = u + w;
			M = mm;
		}
		Pt.v[(q * (blocks + 1) + blocks) * 2] = M;
		Pt.v[(q * (blocks + 1) + blocks) * 2 + 1] = S;
		return;
	}
	bool have = slot < n;
	InU4 page;
	if (have) page = InU4(InU2(hd.pages).v[slot / PE]);
	uint e = slot % PE;
	if (MODE == 0) {
		precise float s = 0.0;
		if (have) {
			for (uint c = 0; c < DP / 8; c++) s = dot8(load8(InU4(mean), q * (DP / 8) + c, F32), load8(page, keyChunk(e, c, PE), T), s);
			if (!isNull(form)) {
				InU4 Fm = InU4(form);
				[[dont_unroll]] for (uint c = 0; c < DP / 8; c++) {
					precise float y[8];
					[[unroll]] for (uint i = 0; i < 8; i++) y[i] = 0.0;
					V8 ka = load8(page, keyChunk(e, c, PE), T);
					[[dont_unroll]] for (uint c2 = c; c2 < DP / 8; c2++) {
						V8 kb = load8(page, keyChunk(e, c2, PE), T);
						[[unroll]] for (uint i = 0; i < 8; i++) y[i] = dot8(load8(Fm, (q * DP + c * 8 + i) * (DP / 8) + c2, F32), kb, y[i]);
					}
					s = dot8(ka, V8(vec4(y[0], y[1], y[2], y[3]), vec4(y[4], y[5], y[6], y[7])), s);
				}
			}
			Z.v[q * ldz + slot] = s;
		}
		bool counts = have && slot >= sink;
		top[tid] = counts ? s : -3.0e38;
		barrier();
		for (uint w = 128; w > 0; w >>= 1) {
			if (tid < w) top[tid] = max(top[tid], top[tid + w]);
			barrier();
		}
		float m = top[0];
		barrier();
		top[tid] = counts ? expo(s - m) : 0.0;
		barrier();
		for (uint w = 128; w > 0; w >>= 1) {
			if (tid < w) {
				precise float x = top[tid] + top[tid + w];
				top[tid] = x;
			}
			barrier();
		}
		if (tid == 0) {
			Pt.v[(q * (blocks + 1) + b) * 2] = m;
			Pt.v[(q * (blocks + 1) + b) * 2 + 1] = top[0];
		}
		return;
	}
	if (!have) return;
	if (slot < sink) {
		OutU(scores).v[h * ldo + slot] = 0x7f800000u;
		return;
	}
	precise float s = 0.0;
	for (uint g = 0; g < group; g++) {
		uint at = ((h * group + g) * (blocks + 1) + blocks) * 2;
		s += expo(Z.v[(h * group + g) * ldz + slot] - Pt.v[at]) / Pt.v[at + 1];
	}
	s /= float(group);
	if (norm != 0) {
		precise float v = 0.0;
		[[dont_unroll]] for (uint c = 0; c < DP / 8; c++) {
			V8 x = load8(page, valueChunk(e, c, PE, DP), T);
			v = dot8(x, x, v);
		}
		s = (s + eps) * sqrt(v);
	}
	OutF(scores).v[h * ldo + slot] = s;
}
