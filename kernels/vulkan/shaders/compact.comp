#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Moves the entries slots[0] < slots[1] < … of a head to entries from, from+1, …
// A workgroup moves one column: 8 elements of every key, or of every value, or
// the positions. It reads 256 entries before it writes them, in ascending order,
// and slots[i] ≥ i, so source and destination may be the same pages.

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint T = 2;
layout(constant_id = 1) const uint D = 128;
layout(constant_id = 2) const uint PE = 64;

const uint DP = (D + 7) / 8 * 8;

struct Job {
	uvec2 src, dst; // page tables
	uvec2 slots;    // n entry numbers, ascending
	uint n, from;   // slots[i] goes to entry i; the first `from` stay
};
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Jobs { Job v[]; };

layout(push_constant) uniform P { uvec2 jobs; };

void main() {
	uint tid = gl_LocalInvocationID.x, col = gl_WorkGroupID.x;
	Job j = Jobs(jobs).v[gl_WorkGroupID.y];
	InU2 src = InU2(j.src), dst = InU2(j.dst);
	InU slots = InU(j.slots);
	for (uint i0 = j.from; i0 < j.n; i0 += 256) {
		uint i = i0 + tid, e = i % PE;
		uvec4 a = uvec4(0), b = uvec4(0);
		bool have = i < j.n;
		if (have) {
			uint s = slots.v[i], se = s % PE;
			uvec2 page = src.v[s / PE];
			if (col < DP / 4) {
				uint at = col < DP / 8 ? keyChunk(se, col, PE) : valueChunk(se, col - DP / 8, PE, DP);
				if (T == F32) {
					a = InU4(page).v[2 * at];
					b = InU4(page).v[2 * at + 1];
				} else a = InU4(page).v[at];
			} else a.x = InU(page).v[pageWords(PE, DP, T) + se];
		}
		memoryBarrierBuffer();
		barrier();
		if (have) {
			uvec2 page = dst.v[i / PE];
			if (col < DP / 4) {
				uint at = col < DP / 8 ? keyChunk(e, col, PE) : valueChunk(e, col - DP / 8, PE, DP);
				if (T == F32) {
					OutU4(page).v[2 * at] = a;
					OutU4(page).v[2 * at + 1] = b;
				} else OutU4(page).v[at] = a;
			} else OutU(page).v[pageWords(PE, DP, T) + e] = a.x;
		}
		memoryBarrierBuffer();
		barrier();
	}
}
