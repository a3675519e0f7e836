#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "page.glsl"
#include "quants.glsl"

// out[q][t] = |v_t·W_O(q)|, the L1 or L2 norm of a value after the columns of the
// output projection [M, H·D] that read query head q. A thread is a slot.

layout(local_size_x = 256) in;
layout(constant_id = 4) const uint WT = 2;

layout(push_constant) uniform P {
	uvec2 w, out_, heads;
	uint head0, group, M, pitch, ldo, norm, held;
};

// weights returns elements 8c … 8c+7 of head q in a row of the projection, zeros behind the head.
V8 weights(InU4 W, uint row, uint q, uint c) {
	row *= rowUnits(pitch, WT);
	uint k = q * D + 8 * c;
	if (D % 8 == 0) return weights8(W, row, k, WT);
	V8 v = V8(vec4(0), vec4(0));
	[[dont_unroll]] for (uint i = 0; i < min(8, D - 8 * c); i += 4) {
		V8 both = weights8(W, row, (k + i) / 8 * 8, WT);
		vec4 four = (k + i) % 8 == 0 ? both.a : both.b;
		if (i == 0) v.a = four;
		else v.b = four;
	}
	return v;
}

void main() {
	uint slot = gl_GlobalInvocationID.x, q = gl_WorkGroupID.y, h = q / group;
	Head hd = Heads(heads).v[head0 + h];
	if (slot >= hd.start + held) return;
	InU4 page = InU4(InU2(hd.pages).v[slot / PE]);
	InU4 W = InU4(w);
	uint e = slot % PE;
	float factor = valueScale(page, e);
	precise float s = 0.0;
	for (uint o = 0; o < M; o += 8) {
		precise float y[8];
		[[unroll]] for (uint i = 0; i < 8; i++) y[i] = 0.0;
		[[dont_unroll]] for (uint c = 0; c < DP / 8; c++) {
			V8 v = loadValue(page, e, c, factor);
			[[unroll]] for (uint i = 0; i < 8; i++) y[i] = dot8(weights(W, min(o + i, M - 1), q, c), v, y[i]);
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
