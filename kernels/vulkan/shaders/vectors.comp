#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "page.glsl"

// Reductions of single keys and values. MODE
//
//   0  first pass of the cosines: sums of the unit keys of a block of 256 slots
//   1  second pass: the mean of all unit keys, and its norm
//   2  third pass: out[h][t] = cos(key, mean)
//   3  out[h][t] = |key|
//   4  out[h][t] = |value|
//
// A workgroup is a block of slots of a KV head, in pass 1 a KV head.

layout(local_size_x = 256) in;
layout(constant_id = 4) const uint MODE = 0;
layout(constant_id = 5) const uint NL = 16;

layout(push_constant) uniform P {
	uvec2 out_, work, heads; // work: [KV][blocks+2][DP]: block sums, mean, norm
	uint head0, ldo, blocks, held;
};

const uint CH = DP / 8;
shared float inv[256];
shared float vr[256 * 8];

float squares(InU4 page, uint e, bool key) {
	float factor = key ? keyScale(page, e) : valueScale(page, e);
	precise float s = 0.0;
	for (uint c = 0; c < CH; c++) {
		V8 x;
		if (key) x = loadKey(page, e, c, factor);
		else x = loadValue(page, e, c, factor);
		s = dot8(x, x, s);
	}
	return s;
}

void main() {
	uint tid = gl_LocalInvocationID.x, h = gl_WorkGroupID.y, b = gl_WorkGroupID.x;
	Head hd = Heads(heads).v[head0 + h];
	uint n = hd.start + held, slot = b * 256 + tid;
	uint base = h * (blocks + 2) * DP;
	InU2 pages = InU2(hd.pages);
	if (MODE == 1) {
		OutF W = OutF(work);
		uint used = (n + 255) / 256;
		if (tid < DP) {
			precise float s = 0.0;
			for (uint i = 0; i < used; i++) s += W.v[base + i * DP + tid];
			s /= float(max(n, 1));
			W.v[base + blocks * DP + tid] = s;
			vr[tid] = s;
		}
		barrier();
		if (tid == 0) {
			precise float s = 0.0;
			for (uint d = 0; d < D; d++) s = fma(vr[d], vr[d], s);
			W.v[base + (blocks + 1) * DP] = max(sqrt(s), 1e-8);
		}
		return;
	}
	bool have = slot < n;
	InU4 page;
	if (have) page = InU4(pages.v[slot / PE]);
	if (MODE == 0) {
		inv[tid] = have ? 1.0 / max(sqrt(squares(page, slot % PE, true)), 1e-12) : 0.0;
		barrier();
		uint lane = tid / CH, ch = tid % CH;
		precise vec4 a = vec4(0), c = vec4(0);
		if (lane < NL) {
			for (uint s = lane; s < 256 && b * 256 + s < n; s += NL) {
				uint sl = b * 256 + s;
				InU4 p = InU4(pages.v[sl / PE]);
				V8 k = loadKey(p, sl % PE, ch, keyScale(p, sl % PE));
				vec4 w = vec4(inv[s]);
				a = fma(w, k.a, a);
				c = fma(w, k.b, c);
			}
			[[unroll]] for (uint i = 0; i < 4; i++) {
				vr[tid * 8 + i] = a[i];
				vr[tid * 8 + 4 + i] = c[i];
			}
		}
		barrier();
		if (tid < DP && b * 256 < n) {
			precise float s = 0.0;
			for (uint l = 0; l < NL; l++) s += vr[(l * CH + tid / 8) * 8 + tid % 8];
			OutF(work).v[base + b * DP + tid] = s;
		}
		return;
	}
	if (!have) return;
	if (MODE == 2) {
		precise float dot = 0.0;
		InU4 A = InU4(work);
		float factor = keyScale(page, slot % PE);
		for (uint c = 0; c < CH; c++) dot = dot8(loadKey(page, slot % PE, c, factor), load8(A, (base + blocks * DP) / 8 + c, F32), dot);
		float norm = max(sqrt(squares(page, slot % PE, true)), 1e-8);
		OutF(out_).v[h * ldo + slot] = dot / (norm * InF(work).v[base + (blocks + 1) * DP]);
	} else {
		OutF(out_).v[h * ldo + slot] = sqrt(squares(page, slot % PE, MODE == 3));
	}
}
