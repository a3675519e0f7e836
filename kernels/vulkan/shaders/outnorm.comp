#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// out[q][t] = |v_t·W_O(q)|, the L1 or L2 norm of a value after the columns of the
// output projection [M, H·D] that read query head q. A thread is a slot.

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint T = 2;
layout(constant_id = 1) const uint D = 128;
layout(constant_id = 2) const uint PE = 64;
layout(constant_id = 3) const uint WT = 2;

const uint DP = (D + 7) / 8 * 8;

layout(push_constant) uniform P {
	uvec2 w, out_, heads;
	uint head0, group, M, pitch, ldo, norm, held;
};

// weights returns elements 8c … 8c+7 from element at on, zeros behind the head.
V8 weights(InU4 W, uint at, uint c) {
	if (D % 8 == 0) return load8(W, at / 8 + c, WT);
	uint i = at / 4 + 2 * c; // in units of 4 elements
	bool more = 8 * c + 4 < D;
	if (WT == F32) return V8(uintBitsToFloat(W.v[i]), more ? uintBitsToFloat(W.v[i + 1]) : vec4(0));
	InU2 H = InU2(w);
	return V8(widen(H.v[i], WT), more ? widen(H.v[i + 1], WT) : vec4(0));
}

void main() {
	uint slot = gl_GlobalInvocationID.x, q = gl_WorkGroupID.y, h = q / group;
	Head hd = Heads(heads).v[head0 + h];
	if (slot >= hd.start + held) return;
	InU4 page = InU4(InU2(hd.pages).v[slot / PE]);
	InU4 W = InU4(w);
	uint e = slot % PE;
	precise float s = 0.0;
	for (uint o = 0; o < M; o += 8) {
		precise float y[8];
		[[unroll]] for (uint i = 0; i < 8; i++) y[i] = 0.0;
		[[dont_unroll]] for (uint c = 0; c < DP / 8; c++) {
			V8 v = load8(page, valueChunk(e, c, PE, DP), T);
			[[unroll]] for (uint i = 0; i < 8; i++) y[i] = dot8(weights(W, min(o + i, M - 1) * pitch + q * D, c), v, y[i]);
		}
		[[unroll]] for (uint i = 0; i < 8; i++) {
			if (o + i < M) {
				if (norm == 1) s += abs(y[i]);
				else s = fma(y[i], y[i], s);
			}
		}
	}
	OutF(out_).v[q * ldo + slot] = norm == 1 ? s : sqrt(s);
}
