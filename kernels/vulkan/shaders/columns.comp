#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "page.glsl"
#include "activation.glsl"

// sums[q][t] += Σ_i p_i(t): the attention that slot t received from n tokens of
// one sequence, per query head, given the softmax statistics that attention
// left. Tokens are added one after the other, so that the bits do not depend on
// how they are cut into calls. A workgroup is a block of 256 slots and up to 8
// query heads of a KV head.

layout(local_size_x = 256) in;

layout(push_constant) uniform P {
	uvec2 q, stats, sums, heads, rowsAt;
	uint ldq, H, group, head0; // head0: heads of the sequence
	uint row, n;               // first token, tokens
	uint lds;
	float scale, cap;
};

shared float sq[8 * DP];
shared float sm[8], ss[8];

void main() {
	uint tid = gl_LocalInvocationID.x, kvh = gl_WorkGroupID.y, g0 = gl_WorkGroupID.z * 8;
	uint gn = min(8, group - g0), tile = 8 / gn;
	Head hd = Heads(heads).v[head0 + kvh];
	uint slot = gl_WorkGroupID.x * 256 + tid;
	uint first = hd.start + Rows(rowsAt).v[row].offset; // token i sees slots up to first + i
	if (gl_WorkGroupID.x * 256 >= first + n) return;
	bool any = slot < first + n && slot < lds;
	precise float sum[8];
	OutF S = OutF(sums);
	[[unroll]] for (uint g = 0; g < 8; g++) sum[g] = any && g < gn ? S.v[(kvh * group + g0 + g) * lds + slot] : 0.0;
	InU4 page;
	uint e = slot % PE;
	float factor = 1.0;
	if (any) {
		page = InU4(InU2(hd.pages).v[slot / PE]);
		factor = keyScale(page, e);
	}
	for (uint i0 = 0; i0 < n; i0 += tile) {
		uint rows = min(tile, n - i0) * gn;
		barrier();
		for (uint i = tid; i < 8 * DP; i += 256) {
			uint r = i / DP, d = i % DP;
			sq[i] = r < rows && d < D ? InF(q).v[(row + i0 + r / gn) * ldq + (kvh * group + g0 + r % gn) * D + d] : 0.0;
		}
		if (tid < rows) {
			uint at = ((row + i0 + tid / gn) * H + kvh * group + g0 + tid % gn) * 2;
			sm[tid] = InF(stats).v[at];
			ss[tid] = InF(stats).v[at + 1];
		}
		barrier();
		if (!any) continue;
		precise float acc[8];
		[[unroll]] for (uint r = 0; r < 8; r++) acc[r] = 0.0;
		[[dont_unroll]] for (uint c = 0; c < DP / 8; c++) {
			V8 kk = loadKey(page, e, c, factor);
			[[unroll]] for (uint r = 0; r < 8; r++) {
				uint at = r * DP + c * 8;
				V8 qq = V8(vec4(sq[at], sq[at + 1], sq[at + 2], sq[at + 3]), vec4(sq[at + 4], sq[at + 5], sq[at + 6], sq[at + 7]));
				acc[r] = dot8(qq, kk, acc[r]);
			}
		}
		[[unroll]] for (uint r = 0; r < 8; r++) {
			if (r >= rows || slot > first + i0 + r / gn) continue;
			precise float s = acc[r] * scale;
			if (cap > 0.0) s = softCap(s, cap);
			float p = power2(s - sm[r]) / ss[r];
			[[unroll]] for (uint g = 0; g < 8; g++) if (g == r % gn) sum[g] += p;
		}
	}
	if (!any) return;
	[[unroll]] for (uint g = 0; g < 8; g++) if (g < gn) S.v[(kvh * group + g0 + g) * lds + slot] = sum[g];
}
