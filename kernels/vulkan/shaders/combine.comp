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

const float NONE = -3.0e38;

shared float o[256];
shared float top[256], keep[256], take[256], sums[256]; // of 256 blocks

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
	precise float O = 0.0, S = 0.0;
	float M = NONE; // largest of all blocks so far
	for (uint b0 = 0; b0 < k.blocks; b0 += 256) {
		uint n = min(256, k.blocks - b0), first = ((k.items + b0) * 8 + r) * ldt;
		float m = NONE;
		if (tid < n) {
			m = P.v[first + tid * 8 * ldt];
			sums[tid] = P.v[first + tid * 8 * ldt + 1];
		}
		top[tid] = m;
		barrier();
		// The largest of each block and those before it.
		[[dont_unroll]] for (uint d = 1; d < 256; d *= 2) {
			float x = tid >= d ? top[tid - d] : NONE;
			barrier();
			top[tid] = max(top[tid], x);
			barrier();
		}
		float before = tid > 0 ? max(M, top[tid - 1]) : M, mm = max(before, m);
		precise float ra = power2(before - mm), rb = power2(m - mm);
		keep[tid] = ra;
		take[tid] = rb;
		barrier();
		if (tid < D) {
			for (uint b = 0; b < n; b += AHEAD) {
				float a[AHEAD];
				[[unroll]] for (uint i = 0; i < AHEAD; i++) {
					if (b + i < n) a[i] = P.v[first + (b + i) * 8 * ldt + 4 + tid];
				}
				[[unroll]] for (uint i = 0; i < AHEAD; i++) {
					if (b + i < n) {
						precise float x = O * keep[b + i], z = a[i] * take[b + i], u = S * keep[b + i], w = sums[b + i] * take[b + i];
						O = x + z;
						S = u + w;
					}
				}
			}
		}
		M = max(M, top[255]);
		barrier();
	}
	if (tid < D) {
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
