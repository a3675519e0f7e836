#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Merges the blocks that attend.comp left for a task, in ascending order: a
// workgroup is one row of one task.

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint YT = 0;
layout(constant_id = 1) const uint D = 128;
layout(constant_id = 2) const uint AHEAD = 8; // blocks that a thread asks memory for at once

#include "task.glsl"

layout(push_constant) uniform P {
	uvec2 y, stats, tasks;
	uint ldy, H, KV, group, ldt, R;
};

shared float o[256];

void main() {
	uint tid = gl_LocalInvocationID.x;
	uint item = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
	Tasks list = Tasks(tasks);
	uint ti = item / R, r = item % R;
	if (ti >= list.count) return;
	Task k = list.v[ti];
	uint tokens = k.shape & 0xffu, gn = k.shape >> 8 & 0xffu, g0 = k.shape >> 16;
	if (r >= tokens * gn) return;
	uint row = k.row + r / gn, h = k.head % KV * group + g0 + r % gn;
	InF P = InF(list.partials);
	precise float O = 0.0, M = -3.0e38, S = 0.0;
	if (tid < D) {
		for (uint b0 = 0; b0 < k.blocks; b0 += AHEAD) {
			float m[AHEAD], s[AHEAD], a[AHEAD];
			[[unroll]] for (uint i = 0; i < AHEAD; i++) {
				if (b0 + i < k.blocks) {
					uint at = ((k.items + b0 + i) * 8 + r) * ldt;
					m[i] = P.v[at];
					s[i] = P.v[at + 1];
					a[i] = P.v[at + 4 + tid];
				}
			}
			[[unroll]] for (uint i = 0; i < AHEAD; i++) {
				if (b0 + i < k.blocks) {
					float mm = max(M, m[i]);
					precise float ra = power2(M - mm), rb = power2(m[i] - mm);
					precise float x = O * ra, z = a[i] * rb, u = S * ra, w = s[i] * rb;
					O = x + z;
					S = u + w;
					M = mm;
				}
			}
		}
		O = S == 0.0 ? 0.0 : O / S;
		if (YT == F32) OutF(y).v[row * ldy + h * D + tid] = O;
		else o[tid] = O;
		if (tid == 0 && !isNull(stats)) {
			OutF(stats).v[(row * H + h) * 2] = M;
			OutF(stats).v[(row * H + h) * 2 + 1] = S;
		}
	}
	if (YT == F32) return;
	barrier();
	if (tid < D / 2) OutU(y).v[(row * ldy + h * D) / 2 + tid] = pack2(o[2 * tid], o[2 * tid + 1], YT);
}
