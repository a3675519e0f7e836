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

layout(push_constant) uniform P {
	uvec2 w, out_, heads;
	uint head0, group, M, pitch, ldo, norm, held;
};

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
		[[dont_unroll]] for (uint c = 0; c < D / 8; c++) {
			V8 v = load8(page, valueChunk(e, c, PE, D), T);
			[[unroll]] for (uint i = 0; i < 8; i++) y[i] = dot8(load8(W, min(o + i, M - 1) * (pitch / 8) + q * (D / 8) + c, WT), v, y[i]);
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
