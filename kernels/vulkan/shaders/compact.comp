#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "page.glsl"

// Moves the entries slots[0] < slots[1] < … of a head to entries from, from+1, …
// A workgroup moves one column: 8 elements of every key, or of every value, or
// the scales of one side, or the positions. It reads 256 entries before it writes
// them, in ascending order, and slots[i] ≥ i, so source and destination may be the
// same pages.

layout(local_size_x = 256) in;

struct Job {
	uvec2 src, dst; // page tables
	uvec2 slots;    // n entry numbers, ascending
	uint n, from;   // slots[i] goes to entry i; the first `from` stay
};
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Jobs { Job v[]; };

layout(push_constant) uniform P { uvec2 jobs; };

// columnAt is where an entry is in a column of keys or values.
uint columnAt(uint col, uint e) { return col < DP / 8 ? keyAt(e, col) : valueAt(e, col - DP / 8); }

void main() {
	uint tid = gl_LocalInvocationID.x, col = gl_WorkGroupID.x, type = col < DP / 8 ? T : VT;
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
				uint at = columnAt(col, se);
				if (type == F32) {
					a = InU4(page).v[2 * at];
					b = InU4(page).v[2 * at + 1];
				} else if (type == I8) a.xy = InU2(page).v[at];
				else a = InU4(page).v[at];
			} else a.x = InU(page).v[wordAt(col - DP / 4, se)];
		}
		memoryBarrierBuffer();
		barrier();
		if (have) {
			uvec2 page = dst.v[i / PE];
			if (col < DP / 4) {
				uint at = columnAt(col, e);
				if (type == F32) {
					OutU4(page).v[2 * at] = a;
					OutU4(page).v[2 * at + 1] = b;
				} else if (type == I8) OutU2(page).v[at] = a.xy;
				else OutU4(page).v[at] = a;
			} else OutU(page).v[wordAt(col - DP / 4, e)] = a.x;
		}
		memoryBarrierBuffer();
		barrier();
	}
}
