#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "page.glsl"

// out[q][t] = k·linear[q] + Σ_a k_a Σ_{b≥a} form[q][a][b]·k_b for the key k of entry t.
// A thread is an entry.

layout(local_size_x = 256) in;

layout(push_constant) uniform P {
	uvec2 linear, form, out_, heads;
	uint head0, group, ldo, held;
};

void main() {
	uint slot = gl_GlobalInvocationID.x, q = gl_WorkGroupID.y;
	Head hd = Heads(heads).v[head0 + q / group];
	if (slot >= hd.start + held) return;
	InU4 page = InU4(InU2(hd.pages).v[slot / PE]);
	uint e = slot % PE;
	float factor = keyScale(page, e);
	precise float s = 0.0;
	for (uint c = 0; c < DP / 8; c++) s = dot8(load8(InU4(linear), q * (DP / 8) + c, F32), loadKey(page, e, c, factor), s);
	if (!isNull(form)) {
		InU4 Fm = InU4(form);
		[[dont_unroll]] for (uint c = 0; c < DP / 8; c++) {
			precise float y[8];
			[[unroll]] for (uint i = 0; i < 8; i++) y[i] = 0.0;
			V8 ka = loadKey(page, e, c, factor);
			[[dont_unroll]] for (uint c2 = c; c2 < DP / 8; c2++) {
				V8 kb = loadKey(page, e, c2, factor);
				[[unroll]] for (uint i = 0; i < 8; i++) y[i] = dot8(load8(Fm, (q * DP + c * 8 + i) * (DP / 8) + c2, F32), kb, y[i]);
			}
			s = dot8(ka, V8(vec4(y[0], y[1], y[2], y[3]), vec4(y[4], y[5], y[6], y[7])), s);
		}
	}
	OutF(out_).v[q * ldo + slot] = s;
}
